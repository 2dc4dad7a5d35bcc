"""Connections that break, and datasets that are damaged where they are pulled from."""

from __future__ import annotations

from urllib.parse import urlsplit

from tests.support.odf import Chain
from tests.support.remedies import Witness, follows
from tests.support.transfer_server import TransferServer
from tests.support.wire_proxy import WireProxy
from tests.unit.transfer.client.test_push_and_pull import laid_out


@follows("remote_dataset.py: try again: what has arrived isn't transferred again")
def a_pull_whose_connections_broke_is_tried_again(witness: Witness) -> None:
    files = laid_out(Chain(b"\xed\x01" + bytes([200]) * 32).append().append())
    with WireProxy() as proxy, TransferServer(files) as server:
        url = f"{proxy.stand_before(server.url)}{urlsplit(server.url).path}"
        words = ("pull", url, witness.lake.uri("c"))
        proxy.drop = lambda _: True
        witness.refused(*words)
        proxy.drop = lambda _: False
        server.url_base = url
        witness.done(*words)


@follows(
    "simple_pull.py: ask the owner of the dataset to repair it: it lacks a block",
    "downloads.py: ask the owner of the dataset to repair it: it lacks an object",
)
def a_dataset_is_pulled_when_its_owner_has_restored_it(witness: Witness) -> None:
    files = laid_out(Chain(b"\xed\x01" + bytes([201]) * 32).append().append())
    data = next(path for path in files if path.startswith("data/"))
    block = next(path for path in files if path.startswith("blocks/"))
    with TransferServer(files) as server:
        words = ("pull", server.url, witness.lake.uri("c"))
        lost = server.files.pop(data)
        witness.refused(*words)
        server.files[data] = lost
        # A server that has no WebSockets is asked for each block by itself.
        server.has_websocket = False
        lost = server.files.pop(block)
        witness.refused(*words)
        server.files[block] = lost
        witness.done(*words)

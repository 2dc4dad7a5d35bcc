"""A server from Python: where it is, how it ends, and which engine makes its digests."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.api import serving as hosting
from lakeferry.engine import Engine
from lakeferry.engines import engine_choice
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.shared_engine import SharedEngine
from lakeferry.errors import InvalidInput, LakeferryError, TimedOut
from lakeferry.server import running_server
from lakeferry.storage import open_store
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from tests.support.history import Append, History
from tests.support.hosting import Place, hosted
from tests.unit.api.test_transfers import Recorded
from tests.unit.api.test_transfers import recorded as recorded
from tests.unit.cli.program import environment, make


def is_well(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/healthz", timeout=30) as response:
        return bool(json.load(response) == {"status": "ok"})


def head_at(url: str) -> str:
    with urllib.request.urlopen(f"{url}/refs/head", timeout=30) as response:
        return str(response.read().decode())


def test_it_answers_while_it_is_a_context(tmp_path: Path) -> None:
    server = lakeferry.Server(str(tmp_path / "root"))
    with pytest.raises(LakeferryError, match="wasn't started"):
        _ = server.url
    with server:
        url = server.url
        assert url.startswith("http://127.0.0.1:")
        assert is_well(url)
    with pytest.raises(urllib.error.URLError):
        is_well(url)


def test_it_answers_beside_an_event_loop(tmp_path: Path) -> None:
    async def main() -> str:
        async with lakeferry.Server(str(tmp_path), public_url="https://ferry.example.com/") as one:
            assert one.url == "https://ferry.example.com"
            async with lakeferry.Server(str(tmp_path), anonymous_read=True) as other:
                assert await asyncio.to_thread(is_well, other.url)
                return other.url

    url = asyncio.run(main())
    with pytest.raises(urllib.error.URLError):
        is_well(url)


def test_who_waits_for_it_is_told_when_it_ends(tmp_path: Path) -> None:
    with lakeferry.Server(str(tmp_path)) as server:
        waiting = threading.Thread(target=server.wait)
        waiting.start()
        assert server.stop()
        waiting.join(30)
        assert not waiting.is_alive()


def test_who_waits_for_it_is_told_when_it_stops_by_itself(tmp_path: Path) -> None:
    with lakeferry.Server(str(tmp_path)) as server:
        assert server._running is not None
        server._running._uvicorn.should_exit = True
        with pytest.raises(LakeferryError, match="stopped answering") as told:
            server.wait()
    assert told.value.remedy == "see its log"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_can_t_begin_to_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = running_server.listen

    def closed(host: str, port: int) -> socket.socket:
        listener = listen(host, port)
        listener.close()
        return listener

    monkeypatch.setattr(running_server, "listen", closed)
    monkeypatch.setattr(running_server, "url_of", lambda *_: "http://127.0.0.1:1")
    with pytest.raises(TimedOut, match="didn't start") as told:
        lakeferry.Server(str(tmp_path)).__enter__()
    assert told.value.remedy == "see its log"


def test_what_makes_no_sense_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    senseless: list[dict[str, Any]] = [{"urls_last": "soon"}, {"engine": "steam"}]
    for wrong in senseless:
        with pytest.raises(InvalidInput):
            lakeferry.Server(str(tmp_path), **wrong)
    with lakeferry.Server(str(tmp_path)) as server:
        port = int(server.url.rpartition(":")[2])
        senseless = [{"port": port}, {"urls_last": "8d"}, {"public_url": "nowhere"}]
        for wrong in senseless:
            with pytest.raises(InvalidInput), lakeferry.Server(str(tmp_path), **wrong):
                pass


def test_digests_of_tables_that_were_put_there_are_an_engines(tmp_path: Path) -> None:
    make(History().then(Append(3)), tmp_path / "root" / "orders")
    asked: list[tuple[int, int]] = []
    engine = Recorded()

    def choose(objects: int, size_bytes: int) -> Engine:
        asked.append((objects, size_bytes))
        return engine

    with hosted(Place((tmp_path / "root").as_uri()), anonymous_read=True, choose=choose) as server:
        head = head_at(server.dataset("orders"))
    assert [objects for objects, _ in asked] == [3]
    assert engine.hashed == [3]
    made = DeltaDataset(open_store(str(tmp_path / "root")), "orders").head()
    assert made is not None
    assert head == made.text


def test_its_engines_are_opened_once_shared_and_closed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Recorded] = []

    def open_engine(_: str) -> Engine:
        opened.append(Recorded())
        return opened[-1]

    monkeypatch.setattr(engine_choice, "open_engine", open_engine)
    for name in ("orders", "items"):
        make(History().then(Append(2)), tmp_path / name)
    with lakeferry.Server(str(tmp_path), engine="spark", anonymous_read=True) as server:
        # What needs no data needs no engine.
        assert is_well(server.url)
        assert opened == []
        for name in ("orders", "items", "orders"):
            head_at(f"{server.url}/{name}")
        assert [each.is_closed for each in opened] == [False]
    assert [each.is_closed for each in opened] == [True]
    assert opened[0].hashed == [2, 2]


def test_exports_get_the_servers_own_engines(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def export(_: lakeferry.Table, **options: object) -> None:
        given.append(options["engine"])

    monkeypatch.setattr(lakeferry.Table, "export", export)
    server = lakeferry.Server(str(tmp_path), engine="spark")
    run = hosting._exporter(server._settings, server._engines)
    run(str(tmp_path / "orders"), table="orders", ref="main", keep=None, register=None)
    [engines] = given
    assert isinstance(engines, engine_choice.Engines)
    assert isinstance(engines.choose(1, 1), SharedEngine)
    server.stop()
    assert recorded.is_closed


def test_engines_suit_their_jobs_and_are_not_given_out_again_when_closed() -> None:
    with engine_choice.Engines("auto") as engines:
        assert isinstance(engines.choose(1, 1), LocalEngine)
        assert engines.choose(1, 1) is engines.choose(2, 2)
    with pytest.raises(InvalidInput, match="closed"):
        engines.choose(1, 1)


def test_serve_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    program = (
        "import logging, signal, sys, lakeferry\n"
        # Whoever runs the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "logging.getLogger('lakeferry').setLevel(logging.INFO)\n"
        "try:\n"
        "    lakeferry.serve('root', port=0)\n"
        "except KeyboardInterrupt:\n"
        "    print('ended')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-uc", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path, {"LAKEFERRY_WEBHOOK_SECRET": "s" * 32}),
    )
    try:
        assert process.stdout is not None
        assert is_well(process.stdout.readline().removeprefix("serving at ").strip())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out.splitlines()[-1]) == (0, "ended")

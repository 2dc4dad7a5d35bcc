"""Servers that mean harm, against our client: as a library, and as a program whose memory is seen.

Whatever they answer is refused with a reason; no block and no head is stored, nothing outside
of the dataset's folder is touched, and nothing is asked of anybody else.
"""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lakeferry.errors import (
    Diverged,
    Forbidden,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    StorageUnavailable,
)
from lakeferry.storage import open_store
from lakeferry.transfer.client.remote_dataset import Terms
from tests.support.hosting import HASTY, QUICK, Files
from tests.support.odf import Chain, SetInfo, block
from tests.support.reference_client import files_of, name_of, run_of
from tests.support.stores import DictStore
from tests.support.transfer_server import TransferServer, batch
from tests.support.transfers import pull, push
from tests.unit.cli.program import PROGRAM, environment

GB, MIB = 1 << 30, 1 << 20
FLAT_BYTES = 400 * MIB
"""More than a client may have, whatever it is sent."""
FILES = files_of(Chain().append(checkpoint="c").append())
RUN = run_of(FILES)
LINK = name_of(b"link")


@pytest.fixture
def server() -> Iterator[TransferServer]:
    with TransferServer(FILES) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a dataset is to be; around it nothing changes, and in it no block and no head is."""
    (tmp_path / "around").mkdir()
    (tmp_path / "around" / "file").write_text("as it was")
    (tmp_path / "passwd").write_text("as it was")
    yield tmp_path / "around" / "dataset"
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    inside = {path for path in found if path.startswith("around/dataset/")}
    assert found - inside - {path for path in found if path.startswith("home/")} == {
        "around/file",
        "passwd",
    }
    assert (tmp_path / "around" / "file").read_text() == "as it was"
    stored = {path.removeprefix("around/dataset/") for path in inside}
    assert not [path for path in stored if path.startswith(("blocks/", "refs/"))]
    # Objects that came before the lie may be there, each with the hash that is its name.
    for path in stored:
        data = (tmp_path / "around" / "dataset" / path).read_bytes()
        assert name_of(data) == path.rpartition("/")[2]


def terms(**changes: Any) -> Terms:
    usual: dict[str, Any] = {"patience": HASTY, "pace": QUICK, "parallel": 4}
    return Terms(**usual | changes)


Errors = type[LakeferryError] | tuple[type[LakeferryError], ...]


def refused(server: TransferServer, folder: Path, error: Errors) -> LakeferryError:
    """See that a pull is refused so, with its reason."""
    with pytest.raises(error) as failed:
        pull(server.url, open_store(str(folder)), terms())
    assert failed.value.cause or failed.value.remedy
    return failed.value


def saying(name: str, lie: Any) -> Callable[[str, Any], Any]:
    """Return what says something else in place of one message, or changes it."""

    def edit(what: str, message: Any) -> Any:
        if what != name:
            return message
        return lie(message) if callable(lie) else lie

    return edit


# --- Blocks -------------------------------------------------------------------------------


def archive(*entries: tarfile.TarInfo) -> dict[str, Any]:
    """Return a batch with a good seed and then what is given."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        seed = tarfile.TarInfo(RUN[0][0])
        seed.size = len(RUN[0][1])
        tar.addfile(seed, io.BytesIO(RUN[0][1]))
        for entry in entries:
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return {**batch([]), "num_blocks": 1 + len(entries), "payload": list(sink.getvalue())}


def entry(path: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(path)
    made.type, made.linkname = kind, link
    return made


def going_round() -> list[tuple[str, bytes]]:
    """Return two blocks that claim to follow each other."""
    one, other = name_of(b"one"), name_of(b"other")
    first = block(SetInfo("one"), prev=bytes.fromhex(other[1:]), sequence_number=1)
    second = block(SetInfo("other"), prev=bytes.fromhex(one[1:]), sequence_number=2)
    return [RUN[0], (one, first), (other, second)]


BLOCKS: dict[str, dict[str, Any]] = {
    "blocks that go round": batch(going_round()),
    "a block twice": batch([*RUN, RUN[0]]),
    "a gap": batch([RUN[0], RUN[2]]),
    "a name with ../": archive(entry(f"../../{LINK}")),
    "an absolute name": archive(entry("/etc/passwd")),
    "a link": archive(entry(LINK, tarfile.LNKTYPE, RUN[0][0])),
    "a symbolic link": archive(entry(LINK, tarfile.SYMTYPE, "../../passwd")),
    "a folder": archive(entry(LINK, tarfile.DIRTYPE)),
    "a device": archive(entry(LINK, tarfile.CHRTYPE)),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_that_lie_are_refused_before_any_object_is_asked_for(
    case: str, server: TransferServer, folder: Path
) -> None:
    server.edit = saying("blocks", {"blocks": BLOCKS[case]})
    refused(server, folder, (InvalidInput, HashMismatch, Diverged))
    assert server.count("GET", "data") == 0
    assert not folder.exists()


def test_another_dataset_than_was_here_is_refused(server: TransferServer, folder: Path) -> None:
    other = Chain(b"\xed\x01" + bytes(range(1, 33))).append()
    store = DictStore(files_of(other))
    for force in (False, True):
        with pytest.raises(Diverged):
            pull(server.url, store, terms(force=force))
    assert store.objects == files_of(other)


# --- Counts and objects -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1 << 31, (1 << 32) - 1, 1 << 70, -1, 1.5, "3"])
@pytest.mark.parametrize("member", ["num_blocks", "num_objects", "bytes_in_raw_objects"])
def test_counts_are_not_believed(
    member: str, count: Any, server: TransferServer, folder: Path
) -> None:
    def lie(message: Any) -> Any:
        message["Ok"]["transfer_plan"][member] = count
        return message

    server.edit = saying("plan", lie)
    store = open_store(str(folder))
    try:
        pull(server.url, store, terms())
    except (InvalidInput, LimitExceeded):
        return
    # One that could be is of no consequence: what counts is what comes.
    assert {f.path: store.get(f.path) for f in store.list("")} == FILES
    store.delete_many([found.path for found in store.list("")])


def other_objects(message: Any) -> Any:
    for one in message["object_transfer_strategies"]:
        one["object_file"]["physical_hash"] = name_of(b"other")
    return message


def more_objects(message: Any) -> Any:
    message["object_transfer_strategies"] *= 3
    return message


def fewer_objects(message: Any) -> Any:
    del message["object_transfer_strategies"][0]
    return message


def many_objects(message: Any) -> Any:
    message["object_transfer_strategies"] *= 20_000
    return message


@pytest.mark.parametrize("lie", [other_objects, more_objects, fewer_objects, many_objects])
def test_urls_for_something_else_than_was_asked_for_are_refused(
    lie: Callable[[Any], Any], server: TransferServer, folder: Path
) -> None:
    server.edit = saying("urls", lie)
    refused(server, folder, (InvalidInput, LimitExceeded))
    assert server.count("GET", "data") == 0


ELSEWHERE = [
    *("file:///etc/passwd", "file://127.0.0.1/etc/passwd", "FILE:///etc/passwd", "data:,x"),
    *("ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "ws://127.0.0.1/x", "unix:///x"),
    *("http://169.254.169.254/latest", "http://[::1]:{port}/x", "http://127.0.0.2:{port}/x"),
    *("http://2130706433:{port}/x", "http://0x7f.1:{port}/x", "http://127.1:{port}/x"),
    *("http://127.0.0.1:{port}@127.0.0.2/x", "http://127.0.0.1\\@127.0.0.2/x", "//127.0.0.2/x"),
    *("http://127.0.0.1.example.com/x", "http:///etc/passwd", "/etc/passwd", "", "\x00", "http:"),
]


@pytest.mark.parametrize("url", ELSEWHERE)
@pytest.mark.parametrize("operation", ["pull", "push"])
def test_urls_to_other_places_are_never_used(
    url: str, operation: str, server: TransferServer, folder: Path
) -> None:
    def elsewhere(message: Any) -> Any:
        found = message.get("Ok", message)["object_transfer_strategies"]
        for one in found:
            for member in ("download_from", "upload_to"):
                if one.get(member):
                    one[member]["url"] = url.replace("{port}", str(server.port))
        return message

    server.edit = saying("urls", elsewhere)
    if operation == "pull":
        refused(server, folder, (Forbidden, InvalidInput))
    else:
        server.files = {}
        with pytest.raises((Forbidden, InvalidInput)):
            push(DictStore(FILES), server.url, terms())
        assert server.files == {}
    asked = [path for method, path, _ in server.asked if path.startswith(("data", "checkpoints"))]
    assert asked == []


# --- Memory -------------------------------------------------------------------------------


def zeros(before: bytes, count: int) -> str:
    """Return a gzip stream of something and many zeros, as a message has it: numbers."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    head, again = (",".join(map(str, part)) for part in (first, piece))
    return head + f",{again}" * (count // MIB)


def header(text: str, size: int) -> bytes:
    made = tarfile.TarInfo(text)
    made.size = size
    return made.tobuf(tarfile.GNU_FORMAT)


# What a process had before it became another program counts as well: so its parent is a small one.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as told:
    told.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def program(folder: Path, *words: str) -> tuple[dict[str, Any], int]:
    """Run the program to its failure; return its error, and the most memory that it had."""
    home = folder.parent.parent / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _MEASURED, home / "memory", PROGRAM, *words, folder, "--json"]
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, b""), ended.stderr
    error = json.loads(ended.stderr.splitlines()[-1])["error"]
    return error, int((home / "memory").read_text()) * 1024


@pytest.mark.parametrize("before", [b"", header(LINK, 10 * GB)], ids=["zeros", "an entry"])
def test_ten_gigabytes_in_a_small_payload_take_no_memory(
    before: bytes, server: TransferServer, folder: Path
) -> None:
    blocks = json.dumps({**batch([]), "num_blocks": 3, "payload": ["here"]})
    server.edit = saying(
        "blocks", f'{{"blocks": {blocks}}}'.replace('"here"', zeros(before, 10 * GB))
    )
    error, most_bytes = program(folder, "pull", server.url)
    assert error["code"] == "limit_exceeded"
    assert error["message"]
    assert most_bytes < FLAT_BYTES


@contextmanager
def endless(length: int | None) -> Iterator[str]:
    """Serve a body that has no end at every path but the WebSockets', which aren't there."""
    listener = socket.create_server(("127.0.0.1", 0))
    head = f"HTTP/1.1 200 OK\r\n{'' if length is None else f'Content-Length: {length}'}\r\n\r\n"
    head = re.sub("(\r\n){3,}", "\r\n\r\n", head)

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            asked = client.recv(MIB)
            if b"/pull" in asked.partition(b"\r\n")[0]:
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            client.sendall(head.encode())
            while True:
                client.sendall(b"f" * MIB)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/d"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        listener.close()


@pytest.mark.parametrize("length", [None, 1 << 60])
def test_an_answer_without_an_end_is_let_go(length: int | None, folder: Path) -> None:
    with endless(length) as url:
        error, most_bytes = program(folder, "pull", url)
    assert error["code"] in ("limit_exceeded", "storage_unavailable", "not_found")
    assert most_bytes < FLAT_BYTES


def test_an_object_that_has_no_end_is_let_go_at_its_size(
    server: TransferServer, folder: Path
) -> None:
    with endless(None) as url:
        server.url_base = url
        refused(server, folder, HashMismatch)


# --- The protocol -------------------------------------------------------------------------


def test_a_server_that_sends_in_circles_is_left(server: TransferServer, folder: Path) -> None:
    server.redirect_to = server.url
    error = refused(server, folder, StorageUnavailable)
    assert "redirect" in error.message
    assert server.count("GET", "data") < 30


LOCATIONS = [
    *("http://127.0.0.1\\@127.0.0.2", "//127.0.0.2\\@127.0.0.1", "\\\\127.0.0.2", "/\\127.0.0.2"),
    *("http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "//[", "http://xn--"),
    *("http://127.0.0.2", "mailto:x", "file:///etc/passwd", "\u212a", "http://h\u212a", "/a b"),
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_redirect_to_what_is_no_url_is_an_error_with_a_reason(
    location: str, server: TransferServer, folder: Path
) -> None:
    server.redirect_to = location
    error = refused(server, folder, (Forbidden, InvalidInput))
    assert error.code != "internal_error"


def blocks_with(**changes: Any) -> str:
    return json.dumps({"blocks": {**batch(RUN), **changes}})


SPEECHES: dict[str, str | bytes] = {
    "a binary frame": b"{}",
    "deep members": '{"a":' * 20_000,
    "deep lists in an answer": '{"Ok":' + "[" * 60_000,
    "a deep refusal": '{"Err":{"Internal":' + '{"a":' * 10_000,
    "blocks of another type": blocks_with(media_type="text/plain"),
    "blocks that are no bytes": blocks_with(payload=[256]),
    "objects that are empty": '{"object_transfer_strategies":[{}]}',
    "a number": "1e999",
}


@pytest.mark.parametrize("name", ["plan", "blocks", "urls"])
@pytest.mark.parametrize("case", SPEECHES)
def test_frames_and_texts_that_make_no_sense_are_refused_at_any_step(
    name: str, case: str, server: TransferServer, folder: Path
) -> None:
    server.edit = saying(name, SPEECHES[case])
    refused(server, folder, (InvalidInput, LimitExceeded))
    assert server.sessions == 1


@pytest.mark.parametrize("reason", ["", "x" * 100, '{"Err":' + "[" * 100, '{"Err":{"Other":{}}}'])
@pytest.mark.parametrize("code", [1000, 1011, 1002, 4999])
def test_a_close_without_sense_is_a_clear_failure_of_a_push(code: int, reason: str) -> None:
    with TransferServer() as server:
        server.edit = saying("metadata", (code, reason))
        with pytest.raises(StorageUnavailable) as failed:
            push(DictStore(FILES), server.url, terms())
        assert failed.value.cause
        assert server.files == {}


def of_kind(files: Files, lead: str) -> list[str]:
    return [path for path in files if path.startswith(lead)]


def test_plain_files_that_lie_in_circles_are_refused(server: TransferServer, folder: Path) -> None:
    server.has_websocket = False
    # Each block's name is answered by the bytes of another.
    names = of_kind(server.files, "blocks/")
    turned = dict(zip(names, (FILES[name] for name in names[1:] + names[:1]), strict=True))
    server.files |= turned
    refused(server, folder, HashMismatch)
    assert server.count("GET", "blocks") <= 3


def test_nothing_is_written_after_a_pull_has_failed(server: TransferServer) -> None:
    under_way: set[str] = set()

    class Slow(DictStore):
        def put(self, path: str, data: bytes) -> None:
            under_way.add(path)
            time.sleep(0.05)
            super().put(path, data)
            under_way.discard(path)

    built = Chain()
    for _ in range(8):
        built.append()
    server.files = files_of(built)
    server.corrupt = {of_kind(server.files, "data/")[-1]}
    store = Slow()
    with pytest.raises(HashMismatch):
        pull(server.url, store, terms())
    assert under_way == set()
    assert of_kind(store.objects, "refs/") == []

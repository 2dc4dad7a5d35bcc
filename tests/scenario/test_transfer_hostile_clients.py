"""Clients that mean harm, against a server in a process of its own.

Whatever they send is refused with a reason, the server goes on, its memory stays flat, and
below its root, around it and in everybody else's datasets nothing has changed. The root is on
local disk and on a real S3 server.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import tarfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pytest

from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER
from tests.support.hosting import ROOTS, Files, Place, contents, hold
from tests.support.odf import Chain, SetInfo, Slice, block
from tests.support.reference_client import (
    Closed,
    Dialogue,
    ReferenceClient,
    batch_of,
    fetch,
    files_of,
    name_of,
    objects_of,
    path_of,
    put,
    run_of,
)
from tests.support.servers import S3Server
from tests.support.serving import Serving, serving

VICTIM = "acc/victim"
OTHER_ID = b"\xed\x01" + bytes(range(1, 33))
GB = 1 << 30
MIB = 1 << 20
NOTES = tuple(f"{OWN_FOLDER}/{name}/" for name in ("ids", "pushes"))
FLAT_BYTES = 400 * MIB
"""More than a server may have, whatever it is sent."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server, and what must stay as it is."""

    server: Serving
    place: Place
    token: str
    home: Path

    def client(self, name: str) -> ReferenceClient:
        return ReferenceClient(f"{self.server.url}/{name}", self.token)

    @property
    def everything(self) -> Files:
        """All that is below the root, and below the folder that the server was started in.

        Of who began a push, and under which name, a server takes notes of its own.
        """
        store = self.place.store
        paths = [found.path for found in store.list("") if not found.path.startswith(NOTES)]
        # The server may remove a note of its own while its folder is walked: `Path.rglob` would
        # fail over that, `os.walk` passes it by.
        files = (Path(top, name) for top, _, names in os.walk(self.home) for name in names)
        around = (str(path) for path in files if path.name != "serve.log")
        kept = {path: b"" for path in around if not any(note in path for note in NOTES)}
        return dict(zip(paths, store.get_many(paths), strict=True)) | kept

    @property
    def most_memory_bytes(self) -> int:
        """The most that the server has had so far."""
        return self._memory_bytes("VmHWM:")

    @property
    def memory_bytes(self) -> int:
        """What the server has now."""
        return self._memory_bytes("VmRSS:")

    def _memory_bytes(self, which: str) -> int:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(which)]
        return int(line.split()[1]) * 1024


@pytest.fixture(scope="module", params=ROOTS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    home, variables = tmp_path_factory.mktemp("hostile"), {}
    if request.param == "local":
        place = Place((home / "a root").as_uri())
    else:
        s3: S3Server = request.getfixturevalue("versitygw")
        bucket = s3.create_bucket(f"hostile-{uuid.uuid4().hex[:12]}")
        place = Place(f"{bucket.uri}/root", bucket.storage_options)
        variables = s3.environment()
    hold(place.store, files_of(Chain(OTHER_ID).append()), f"{VICTIM}/")
    token = Tokens(place.store).create(Scope.WRITE)
    with serving(home, variables, root=place.store, forked=False) as server:
        yield Target(server, place, token, home)


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    """The server, which has to answer and to have changed nothing when a test is over."""
    before = running.everything
    yield running
    assert fetch(f"{running.server.url}/healthz")[0] == 200
    assert running.everything == before
    assert "Traceback" not in running.server.shown()


def dataset() -> Files:
    return files_of(Chain().append(checkpoint="c").append())


FILES = dataset()
RUN = run_of(FILES)


def name() -> str:
    """Return a dataset's name that nobody has used."""
    return f"acc/{uuid.uuid4().hex[:12]}"


# --- Archives -----------------------------------------------------------------------------


def archive(*entries: tarfile.TarInfo) -> bytes:
    """Return an archive with a good seed and then what is given."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        seed = tarfile.TarInfo(RUN[0][0])
        seed.size = len(RUN[0][1])
        tar.addfile(seed, io.BytesIO(RUN[0][1]))
        for entry in entries:
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return sink.getvalue()


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


def of_itself() -> list[tuple[str, bytes]]:
    own = name_of(b"own")
    prev = bytes.fromhex(own.removeprefix("f"))
    return [RUN[0], (own, block(SetInfo("own"), prev=prev, sequence_number=1))]


LINK = name_of(b"link")
BLOCKS: dict[str, tuple[list[tuple[str, bytes]], bytes | None, str]] = {
    "a block with another's name": ([RUN[0], (RUN[1][0], RUN[2][1])], None, "hash_mismatch"),
    "blocks out of order": ([RUN[0], RUN[2], RUN[1]], None, "invalid_input"),
    "a gap": ([RUN[0], RUN[2]], None, "invalid_input"),
    "blocks that go round": (going_round(), None, "hash_mismatch"),
    "a block that follows itself": (of_itself(), None, "hash_mismatch"),
    "a seed within": ([*RUN, RUN[0]], None, "invalid_input"),
    "a name with ../": (RUN, archive(entry(f"../{LINK}")), "invalid_input"),
    "a name with many ../": (RUN, archive(entry("../" * 12 + "etc/passwd")), "invalid_input"),
    "an absolute name": (RUN, archive(entry("/etc/passwd")), "invalid_input"),
    "a link": (RUN, archive(entry(LINK, tarfile.LNKTYPE, RUN[0][0])), "invalid_input"),
    "a symbolic link": (RUN, archive(entry(LINK, tarfile.SYMTYPE, "/etc")), "invalid_input"),
    "a folder": (RUN, archive(entry(LINK, tarfile.DIRTYPE)), "invalid_input"),
    "a device": (RUN, archive(entry(LINK, tarfile.CHRTYPE)), "invalid_input"),
    "a pipe": (RUN, archive(entry(LINK, tarfile.FIFOTYPE)), "invalid_input"),
    "a name with a NUL": (RUN, archive(entry(f"{LINK}\0/../x")), "invalid_input"),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_that_lie_are_refused_with_a_reason(case: str, target: Target) -> None:
    run, payload, code = BLOCKS[case]
    with target.client(name()).open("push") as session:
        session.request_push(None)
        with pytest.raises(Closed) as closed:
            session.send_blocks(run, payload)
    assert closed.value.code == 1011
    assert closed.value.internal == ("MetadataRequest", code)


def zeros(before: bytes, count: int) -> str:
    """Return a gzip stream of something and many zeros, as a message has it: numbers."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush the same bytes unfold to the same zeros, again and again.
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    texts = (",".join(map(str, part)) for part in (first, piece))
    head, again = texts
    return head + f",{again}" * (count // MIB)


def header(text: str, size: int) -> bytes:
    made = tarfile.TarInfo(text)
    made.size = size
    return made.tobuf(tarfile.GNU_FORMAT)


BOMBS = {
    "nothing but zeros": b"",
    "an entry of 10 GB": header(LINK, 10 * GB),
    "a block of zeros behind a good one": (
        header(RUN[0][0], len(RUN[0][1]))
        + RUN[0][1].ljust(-(-len(RUN[0][1]) // 512) * 512, b"\0")
        + header(LINK, 4 * MIB)
    ),
}


def test_ten_gigabytes_in_a_small_payload_leave_memory_flat(target: Target) -> None:
    peaks = []
    for before in (*BOMBS.values(), *BOMBS.values()):
        batch = json.dumps({**batch_of(RUN, b""), "payload": ["here"]})
        message = f'{{"new_blocks": {batch}}}'.replace('"here"', zeros(before, 10 * GB))
        with target.client(name()).open("push") as session:
            session.request_push(None)
            with pytest.raises(Closed) as closed:
                session.ask(message)
        assert closed.value.internal[0] == "MetadataRequest"
        assert closed.value.internal[1] in ("limit_exceeded", "invalid_input", "hash_mismatch")
        peaks.append(target.most_memory_bytes)
    assert peaks[-1] < FLAT_BYTES
    # What the first ones took, the others use again.
    assert peaks[-1] - peaks[len(BOMBS) - 1] < 64 * MIB


# --- Messages -----------------------------------------------------------------------------

Step = Callable[[Dialogue], object]
PULL = {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}


def push_steps() -> list[Step]:
    return [
        lambda session: session.request_push(None),
        lambda session: session.send_blocks(RUN),
        lambda session: session.urls(objects_of(RUN), is_truncated=True),
        lambda session: session.say({"details": "Complete"}),
    ]


def pull_steps() -> list[Step]:
    return [lambda session: session.ask(PULL), lambda session: session.ask({})]


SPEECHES: dict[str, str | bytes] = {
    "a binary frame": b'{"details": "Complete"}',
    "no JSON": "\x00nonsense",
    "a number": "1e400",
    "deep lists": "[" * 60_000,
    "deep members": '{"a":' * 20_000,
    "a deep member of a good message": '{"object_files":' + "[" * 50_000,
}


@pytest.mark.parametrize("speech", SPEECHES)
@pytest.mark.parametrize(
    ("operation", "after"),
    [("push", n) for n in range(5)] + [("pull", n) for n in range(3)],
)
def test_what_makes_no_sense_ends_the_session_at_any_step(
    operation: str, after: int, speech: str, target: Target
) -> None:
    steps = push_steps() if operation == "push" else pull_steps()
    asked = name() if operation == "push" else VICTIM
    with target.client(asked).open(operation) as session:
        for step in steps[:after]:
            step(session)
        session.socket.send(SPEECHES[speech])
        with pytest.raises(Closed) as closed:
            session.hear()
    assert closed.value.code == 1011


HEAVY = "\U0001f600" * (15 * MIB)
"""60 MiB, which are as many again if they become a string, or four times that with a comma."""


@pytest.mark.parametrize(
    ("operation", "after"),
    [("push", 0), ("push", 4), ("pull", 2)],
)
def test_a_large_message_is_refused_by_its_length_and_leaves_no_memory(
    operation: str, after: int, target: Target
) -> None:
    steps = push_steps() if operation == "push" else pull_steps()
    before_bytes = target.memory_bytes
    for _ in range(2):
        asked = name() if operation == "push" else VICTIM
        with target.client(asked).open(operation) as session:
            for step in steps[:after]:
                step(session)
            with pytest.raises(Closed) as closed:
                session.ask(HEAVY)
        assert closed.value.code == 1011
        assert closed.value.internal[1] in ("limit_exceeded", "invalid_input")
    assert target.memory_bytes - before_bytes < 32 * MIB


def wanted(count: int) -> list[dict[str, Any]]:
    one = objects_of(RUN)[0]
    return [one] * count


HUGE: dict[str, Callable[[Dialogue], object]] = {
    "more objects than a message may name": lambda s: s.urls(wanted(60_000)),
    "an object that no block names": lambda s: s.urls(
        [{"object_type": "DataSlice", "physical_hash": name_of(b"x"), "size": 1}]
    ),
    "a size beyond all numbers": lambda s: s.urls([{**wanted(1)[0], "size": 1 << 80}]),
    "a size below zero": lambda s: s.urls([{**wanted(1)[0], "size": -1}]),
    "a hash that is a path": lambda s: s.urls(
        [{**wanted(1)[0], "physical_hash": "../../../etc/passwd"}]
    ),
    "another kind of object": lambda s: s.urls([{**wanted(1)[0], "object_type": "../x"}]),
}


@pytest.mark.parametrize("case", HUGE)
def test_objects_that_cannot_be_are_refused(case: str, target: Target) -> None:
    with target.client(name()).open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        with pytest.raises(Closed) as closed:
            HUGE[case](session)
    assert closed.value.code == 1011
    assert closed.value.internal[0] == "ObjectsRequest"


@pytest.mark.parametrize("count", [0, 2, 1 << 31, (1 << 32) - 1, 1 << 64, -1])
def test_counts_that_are_wrong_are_refused_without_being_believed(
    count: int, target: Target
) -> None:
    with target.client(name()).open("push") as session:
        session.request_push(None)
        with pytest.raises(Closed) as closed:
            session.ask({"new_blocks": {**batch_of(RUN), "num_blocks": count}})
    assert closed.value.internal == ("MetadataRequest", "invalid_input")


def test_a_client_that_commits_without_uploading_gets_nothing(target: Target) -> None:
    asked = target.client(name())
    for objects in ([], objects_of(RUN)):
        with asked.open("push") as session:
            session.request_push(None)
            session.send_blocks(RUN)
            session.urls(objects)
            with pytest.raises(Closed) as closed:
                session.complete()
        assert closed.value.internal == ("CompleteRequest", "missing_file")
        assert asked.head() is None


def test_a_block_that_gives_an_object_another_size_takes_nothing_away(target: Target) -> None:
    # The victim's own objects, which the fixture compares, are what the block names.
    victim = Chain(OTHER_ID).append()
    before = victim.head.text
    [(known, data)] = victim.objects.items()
    victim.append(new_data=Slice(known, 10, 19, len(data) + 1))
    run = [(name.text, block) for name, block in victim.blocks[-1:]]
    with target.client(VICTIM).open("push") as session:
        session.request_push(before)
        session.send_blocks(run)
        with pytest.raises(Closed) as closed:
            session.urls(objects_of(run))
    assert closed.value.internal == ("ObjectsRequest", "hash_mismatch")


# --- Names --------------------------------------------------------------------------------

TRICKS = [
    *("..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e", "..%2f..%2f..", ".%2e/x", "%2e"),
    *("acc/..", "acc/%2e%2e", "acc%2f..%2f..%2fx", "acc/../../x", "acc/victim/.."),
    *("acc%2fvictim%2f..%2fvictim", "acc\\victim", "..\\..\\x", "acc/..%5c..%5cx", "%5c"),
    *("acc/victim%00", "%00", "acc%00/victim", "acc/%0a", "acc/victim%0d%0ax:y", "acc/ "),
    *("acc//victim", "/acc/victim", "acc/victim/data", ".", "...", ".lakeferry", "%2elakeferry"),
    *("acc/.lakeferry", "metrics", "healthz", "acc/%252e%252e", "%c0%ae%c0%ae", "acc/\uff0e\uff0e"),
    *("a" * 5000, "acc/victim/x", "file:%2f%2f%2fetc", "acc/victim;x", "acc/victim?x", "acc/*"),
]


def asked_raw(
    target: Target, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Ask for a path as it is written; nobody on the way makes it sensible."""
    connection = http.client.HTTPConnection(urlsplit(target.server.url).netloc, timeout=60)
    try:
        connection.putrequest(method, quote(path, safe="/%\\?;*:"), skip_accept_encoding=True)
        for key, value in {"Authorization": f"Bearer {target.token}", **headers}.items():
            connection.putheader(key, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


SOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "x-odf-smtp-version": "1",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_names_that_could_lead_elsewhere_lead_nowhere(trick: str, target: Target) -> None:
    data = name_of(b"x")
    asked: list[tuple[str, str, bytes | None, dict[str, str]]] = [
        ("GET", f"/{trick}/refs/head", None, {}),
        ("GET", f"/{trick}/blocks/{RUN[0][0]}", None, {}),
        ("PUT", f"/{trick}/data/{data}", b"x", {}),
        ("GET", f"/{trick}/pull", None, SOCKET),
        ("GET", f"/{trick}/push", None, SOCKET),
        ("GET", f"/{VICTIM}/data/{trick}", None, {}),
        ("PUT", f"/{VICTIM}/data/{trick}", b"x", {}),
        ("GET", f"/{VICTIM}/refs/{trick}", None, {}),
    ]
    for method, path, body, headers in asked:
        status, answer = asked_raw(target, method, path, body, **headers)
        # 403 is for a WebSocket at what no route is for.
        assert status in (400, 403, 404, 405, 414), (method, path, status)
        assert b"root:" not in answer


# --- Signed URLs --------------------------------------------------------------------------


def altered(url: str, **changes: str | None) -> str:
    """Return a URL with other members in its query, or without some."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query)) | changes
    return urlunsplit(
        parts._replace(query=urlencode({key: v for key, v in query.items() if v is not None}))
    )


def alterations(url: str, key: str) -> Iterator[str]:
    """Yield URLs that allow something else than what was signed, or would."""
    parts = urlsplit(url)
    for member, value in parse_qsl(parts.query):
        yield altered(url, **{member: None})
        yield altered(url, **{member: value[:-1] + ("0" if value[-1] != "0" else "1")})
    other = name_of(b"other")
    yield url.replace(key, other)
    yield url.replace(key, other.upper())
    yield urlunsplit(parts._replace(path=parts.path.replace("/data/", "/checkpoints/")))
    yield urlunsplit(parts._replace(path=parts.path.rpartition("/data/")[0] + "/refs/head"))
    yield url.replace(key, "..%2F..%2F..%2Fx")


def with_url(target: Target, use: Callable[[ReferenceClient, dict[str, Any], str], None]) -> None:
    """Begin a push, and do something with the signed URL of one of its objects."""
    client = target.client(name())
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        [one] = [each for each in objects_of(RUN) if each["object_type"] == "DataSlice"][:1]
        [strategy] = session.urls([one], is_truncated=True)
        use(client, strategy["upload_to"], one["physical_hash"])


def test_an_altered_url_puts_nothing(target: Target) -> None:
    data = FILES[path_of(objects_of(RUN)[0])]

    def use(_: ReferenceClient, upload: dict[str, Any], key: str) -> None:
        for url in alterations(upload["url"], key):
            if url != upload["url"]:
                assert put({**upload, "url": url}, data) in (400, 401, 403, 404, 405, 501), url
        # A URL to put something isn't one to get it.
        assert fetch(upload["url"])[0] in (400, 401, 403, 404)

    with_url(target, use)


def test_an_altered_url_gets_nothing(target: Target) -> None:
    client = target.client(VICTIM)
    run = run_of(contents(target.place.store, f"{VICTIM}/"))
    with client.open("pull") as session:
        session.ask(PULL)
        session.ask({})
        [strategy] = session.ask({"object_files": objects_of(run)})["object_transfer_strategies"]
    url, key = strategy["download_from"]["url"], strategy["object_file"]["physical_hash"]
    assert fetch(url)[0] == 200
    for other in alterations(url, key):
        if other != url:
            assert fetch(other)[0] in (400, 401, 403, 404), other
    assert put({"url": url, "headers": []}, b"x") in (400, 401, 403)


def test_a_url_that_is_used_again_replaces_nothing(running: Target) -> None:
    client = running.client(name())
    uploads: list[tuple[dict[str, Any], str]] = []
    with client.open("push") as session:
        session.request_push(None)
        session.send_blocks(RUN)
        strategies = session.urls(objects_of(RUN))
        session.upload(FILES, strategies)
        uploads += [
            (each["upload_to"], path_of(each["object_file"]))
            for each in strategies
            if each["upload_to"] is not None
        ]
        assert session.complete() == {}
    assert client.pull() == FILES
    for upload, path in uploads:
        put(upload, bytes(len(FILES[path])))
        put(upload, FILES[path][:-1])
        put(upload, FILES[path])
    assert client.pull() == FILES
    # The id is somebody's now: nobody else of these tests gets to push it.
    store = running.place.store
    lead = client.url.removeprefix(f"{running.server.url}/")
    store.delete_many([found.path for found in store.list(f"{lead}/")])

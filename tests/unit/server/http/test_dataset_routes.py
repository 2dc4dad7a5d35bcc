"""Datasets over HTTP: who gets which answer, which bytes, and what is in the store then."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakeferry.errors import StorageUnavailable, Unauthorized
from lakeferry.export.job_queue import Queue
from lakeferry.server.http import dataset_routes as served
from lakeferry.server.http.access import DatasetAccess
from lakeferry.server.http.dataset_admin import DatasetAdmin
from lakeferry.server.http.dataset_routes import Datasets, RequestTarget
from lakeferry.server.http.http_app import create_app
from lakeferry.storage import ObjectInfo
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.dataset import DATASET_CHUNK_BYTES
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.transfer.repository.dataset_changes import CheckUnused, DatasetChanges
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.repository.signed_urls import Links, Signer
from tests.support.clock import ManualClock
from tests.support.history import Append, History
from tests.support.odf import Chain
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall, on

NAME, OTHER = DatasetName.parse("acc/d"), DatasetName.parse("acc/e")
NOW_MS = 1_700_000_000_000
LARGE = bytes(range(256)) * (DATASET_CHUNK_BYTES // 128) + b"the end"


def name_of(data: bytes) -> str:
    return Multihash.sha3_256(data).text


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """What a refusal of a dataset's own says."""
        assert self.headers["content-type"] == "application/json"
        document = json.loads(self.body)
        assert list(document) == ["message"]
        return str(document["message"])


@dataclass
class Server:
    """The application over a store in memory, asked as a server would ask it."""

    anonymous_read: bool = False
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    silent_for_s: float = 10.0
    head_within_s: float = 30.0
    hold: threading.Event = field(default_factory=threading.Event)
    """What a call with a delay waits for."""
    check_unused: CheckUnused = lambda _: None

    def __post_init__(self) -> None:
        self.chain = Chain().append(checkpoint="c").append()
        self.disk = DictStore({**laid_out(self.chain, "acc/d"), **laid_out(self.chain, "open")})
        self.disk.put(f"acc/d/data/{name_of(LARGE)}", LARGE)
        self.store = FaultyStore(self.disk, delay=lambda: assert_(self.hold.wait(30)))
        self.repository = Repository(self.store)
        self.repository.set_visibility(DatasetName.parse("open"), Visibility.PUBLIC)
        self.tokens = Tokens(self.store, clock=self.clock)
        self.signer = Signer(bytes(32), clock=self.clock)
        access = DatasetAccess(self.repository, self.tokens, anonymous_read=self.anonymous_read)
        changes = DatasetChanges(self.repository, self.check_unused, clock=self.clock)
        routes = DatasetAdmin(self.repository, access, changes).routes()
        routes += Datasets(
            self.repository,
            access,
            self.signer,
            largest_object_bytes=10_000_000,
            silent_for_s=self.silent_for_s,
            head_within_s=self.head_within_s,
        ).routes()
        self.app = create_app(
            Queue(self.store), None, wake=lambda: None, is_healthy=lambda: True, datasets=routes
        )
        self.reader = self.tokens.create(Scope.READ, dataset=NAME)
        self.writer = self.tokens.create(Scope.WRITE, dataset=NAME)

    def ask(
        self,
        path: str,
        token: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        *,
        method: str = "GET",
        data: bytes = b"",
        query: str = "",
        length: int | None = -1,
        ends: str = "well",
        taken: Callable[[], object] | None = None,
    ) -> Answer:
        """Ask for something; a body is as long as it says, unless told otherwise.

        With ``taken``, which is called for each part of the answer, none of it is kept.
        """
        sent_headers = [*headers]
        if token is not None:
            sent_headers.append(("Authorization", f"Bearer {token}"))
        if method == "PUT" and length is not None:
            sent_headers.append(("Content-Length", str(len(data) if length < 0 else length)))
        chunks = [data[at : at + 65_536] for at in range(0, len(data), 65_536)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if chunks:
                chunk = chunks.pop(0)
                more = bool(chunks) or ends != "well"
                return {"type": "http.request", "body": chunk, "more_body": more}
            if ends != "abruptly":
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))
            if taken is not None:
                sent[-1].pop("body", None)
                taken()

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent_headers],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
        }
        asyncio.run(self.app(scope, receive, send))
        content = b"".join(each.get("body", b"") for each in sent[1:])
        found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, content)

    def put(self, path: str, data: bytes, token: str | None = None, **how: Any) -> Answer:
        return self.ask(path, token or self.writer, method="PUT", data=data, **how)


def assert_(condition: bool) -> None:
    assert condition


def laid_out(built: Chain, folder: str) -> dict[str, bytes]:
    objects = {f"{folder}/blocks/{name}": data for name, data in built.blocks}
    for name, data in built.objects.items():
        below = "data" if data.startswith(b"rows") else "checkpoints"
        objects[f"{folder}/{below}/{name}"] = data
    return {**objects, f"{folder}/refs/head": built.head.text.encode()}


@pytest.fixture
def server() -> Server:
    return Server()


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("/d/refs/head", ("d", "refs", "head")),
            ("/acc/d/data/x", ("acc/d", "data", "x")),
            ("/data/blocks/x", ("data", "blocks", "x")),
            ("/a/checkpoints/..", ("a", "checkpoints", "..")),
        ],
    )
    def test_a_path_names_something_of_a_dataset(
        self, path: str, found: tuple[str, str, str]
    ) -> None:
        target = RequestTarget.of(path)
        assert target is not None
        assert (target.dataset.text, target.folder, target.leaf) == found

    @pytest.mark.parametrize(
        "path",
        [
            *("", "/", "/d", "/d/refs", "/d/refs/", "/refs/head", "//refs/head", "/d//refs/head"),
            *("/a/b/c/refs/head", "/../refs/head", "/a/../refs/head", "/.lakeferry/refs/head"),
            *("/metrics/refs/head", "/healthz/data/x", "/acc/d/info/x", "/acc/d/.lakeferry/x"),
            *("/acc/d/refs/head/", "/acc\\..\\d/refs/head", "/.lakeferry/tokens/data/x"),
        ],
    )
    def test_nothing_else_is_anything(self, server: Server, path: str) -> None:
        assert RequestTarget.of(path) is None
        if path:
            answer = server.ask(path, server.reader)
            assert (answer.status, answer.body) == (404, b"")


class TestReading:
    def test_the_head_is_text_without_a_newline(self, server: Server) -> None:
        answer = server.ask("/acc/d/refs/head", server.reader)
        assert (answer.status, answer.body) == (200, server.chain.head.text.encode())
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"

    def test_everything_comes_as_it_is_stored(self, server: Server) -> None:
        for path, data in server.disk.objects.items():
            if path.startswith("acc/d/") and "/." not in path:
                answer = server.ask(f"/{path}", server.reader)
                assert (answer.status, answer.body) == (200, data)
                assert answer.headers["content-length"] == str(len(data))

    def test_any_spelling_of_a_hash_leads_to_it(self, server: Server) -> None:
        name, data = server.chain.blocks[0]
        for base in "fFzu":
            answer = server.ask(f"/acc/d/blocks/{name.spelled(base)}", server.reader)
            assert (answer.status, answer.body) == (200, data)

    def test_what_is_small_costs_one_request_and_what_is_large_is_read_in_chunks(
        self, server: Server
    ) -> None:
        server.ask("/acc/d/refs/head", server.reader)
        name, data = next(iter(server.chain.objects.items()))
        server.store.history.clear()
        assert server.ask(f"/acc/d/data/{name}", server.reader).body == data
        assert [call.verb for call in server.store.history] == ["RANGE"]
        server.store.history.clear()
        assert server.ask(f"/acc/d/data/{name_of(LARGE)}", server.reader).body == LARGE
        assert [call.verb for call in server.store.history] == ["RANGE", "HEAD", "RANGE", "RANGE"]

    def test_of_what_is_large_a_chunk_is_in_memory(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Chunk(bytes):
            alive = 0

            def __new__(cls, data: bytes) -> Chunk:
                cls.alive += 1
                return super().__new__(cls, data)

            def __del__(self) -> None:
                Chunk.alive -= 1

        read = server.disk.get_range
        monkeypatch.setattr(server.disk, "get_range", lambda *asked: Chunk(read(*asked)))
        at_once: list[int] = []
        server.ask(
            f"/acc/d/data/{name_of(LARGE)}",
            server.reader,
            taken=lambda: at_once.append(Chunk.alive),
        )
        assert len(at_once) > 4
        assert at_once[3] == 1

    @pytest.mark.parametrize("leaf", ["refs/tail", "refs/HEAD", "blocks", "data", "checkpoints"])
    def test_what_is_missing_is_404_with_a_message(self, server: Server, leaf: str) -> None:
        path = leaf if "/" in leaf else f"{leaf}/{name_of(b'missing')}"
        assert server.ask(f"/acc/d/{path}", server.reader).status == 404
        assert "here" in server.ask(f"/acc/d/{path}", server.reader).message

    @pytest.mark.parametrize("folder", ["blocks", "data", "checkpoints"])
    @pytest.mark.parametrize("leaf", ["x", "..", "f1620", "head", "f1620" + "0" * 63 + "G"])
    def test_a_hash_that_is_none_is_400(self, server: Server, folder: str, leaf: str) -> None:
        answer = server.ask(f"/acc/d/{folder}/{leaf}", server.reader)
        assert (answer.status, "not a hash" in answer.message) == (400, True)

    def test_a_dataset_that_is_not_there_has_nothing_to_say(self, server: Server) -> None:
        everything = server.tokens.create(Scope.WRITE)
        for path in ("refs/head", f"data/{name_of(b'')}", f"blocks/{name_of(b'')}", "data/x"):
            answer = server.ask(f"/nobody/{path}", everything)
            assert (answer.status, answer.body) == (404, b"")
        assert server.put(f"/nobody/data/{name_of(b'')}", b"", everything).status == 404
        assert not any(path.startswith("nobody") for path in server.disk.objects)

    def test_head_says_what_get_would_without_the_bytes(self, server: Server) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        got, headed = (
            server.ask(path, server.reader),
            server.ask(path, server.reader, method="HEAD"),
        )
        assert (headed.status, headed.headers, headed.body) == (200, got.headers, b"")
        missing = f"/acc/d/data/{name_of(b'missing')}"
        assert server.ask(missing, server.reader, method="HEAD").status == 404

    def test_a_head_that_is_long_in_the_making_is_to_be_asked_for_again(self) -> None:
        server = Server(head_within_s=0.01)
        for name, data in History().then(Append(1)).objects().items():
            server.disk.put(f"acc/d2/{name}", data)
        token = server.tokens.create(Scope.READ)
        with ExitStack() as stack:
            stack.callback(server.repository.heads.stop)
            stack.callback(server.hold.set)
            server.store.rule = lambda call: (
                Fault.DELAY if any(".parquet" in path for path in call.paths) else None
            )
            late = server.ask("/acc/d2/refs/head", token)
            assert (late.status, late.headers["retry-after"], late.body) == (503, "5", b"")
            assert server.ask("/acc/d/refs/head", token).status == 200
            under_way = server.repository.heads.of(DatasetName.parse("acc/d2"))
            server.hold.set()
            made = under_way.result(30)
            assert made is not None
        assert Repository(server.disk).delta(DatasetName.parse("acc/d2")).head() == made

    def test_a_store_that_fails_shows_nothing_of_its_inside(self, server: Server) -> None:
        for fault in ("GET", "RANGE"):
            server.store.rule = on(fault, Fault.FAIL, containing="refs", times=-1)
            answer = server.ask("/acc/d/refs/head", server.reader)
        assert (answer.status, answer.body) == (503, b"")
        assert answer.headers["retry-after"]

    @pytest.mark.parametrize("mistake", [Unauthorized("the store's key is wrong"), KeyError("x")])
    def test_what_is_wrong_with_the_server_is_500_and_empty(
        self, server: Server, mistake: Exception
    ) -> None:
        class Broken(FaultyStore):
            def head(self, path: str) -> ObjectInfo:
                raise mistake

        broken = Datasets(
            Repository(Broken(server.disk)), DatasetAccess(server.repository, server.tokens)
        )
        server.app.router.routes[-1:] = broken.routes()
        answer = server.ask(f"/acc/d/data/{name_of(LARGE)}", server.reader)
        assert (answer.status, answer.body) == (500, b"")


class TestRanges:
    @pytest.mark.parametrize(
        ("asked", "begin", "end"),
        [
            ("bytes=0-0", 0, 1),
            ("bytes=5-9", 5, 10),
            (
                f"bytes={DATASET_CHUNK_BYTES - 3}-{DATASET_CHUNK_BYTES + 3}",
                DATASET_CHUNK_BYTES - 3,
                DATASET_CHUNK_BYTES + 4,
            ),
            ("bytes=10-", 10, len(LARGE)),
            ("bytes=0-", 0, len(LARGE)),
            ("bytes=-7", len(LARGE) - 7, len(LARGE)),
            ("bytes=-99999999999", 0, len(LARGE)),
            ("bytes=7-99999999999", 7, len(LARGE)),
        ],
    )
    def test_a_part_is_what_was_asked_for(
        self, server: Server, asked: str, begin: int, end: int
    ) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        answer = server.ask(path, server.reader, [("Range", asked)])
        assert (answer.status, answer.body == LARGE[begin:end]) == (206, True)
        assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(LARGE)}"
        assert answer.headers["content-length"] == str(end - begin)

    @pytest.mark.parametrize("asked", [f"bytes={len(LARGE)}-", "bytes=99999999999-", "bytes=-0"])
    def test_a_part_that_is_not_there_is_416(self, server: Server, asked: str) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        answer = server.ask(path, server.reader, [("Range", asked)])
        assert (answer.status, answer.body) == (416, b"")
        assert answer.headers["content-range"] == f"bytes */{len(LARGE)}"

    @pytest.mark.parametrize(
        "asked",
        ["bytes=-", "bytes=9-5", "bytes=0-1,4-5", "lines=0-1", "bytes=a-b", "bytes=1bytes=2"],
    )
    def test_what_is_no_range_is_the_whole(self, server: Server, asked: str) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        answer = server.ask(path, server.reader, [("Range", asked)])
        assert (answer.status, answer.body == LARGE) == (200, True)

    def test_a_part_of_something_else_is_the_whole(self, server: Server) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        etag = server.ask(path, server.reader).headers["etag"]
        for said, status in ((etag, 206), ('"other"', 200)):
            headers = [("Range", "bytes=0-1"), ("If-Range", said)]
            assert server.ask(path, server.reader, headers).status == status


class TestAccess:
    HEAD = "/acc/d/refs/head"

    def test_no_token_is_401_whether_the_dataset_is_there_or_not(self, server: Server) -> None:
        for path in (self.HEAD, "/nobody/refs/head", "/acc/d/data/x"):
            answer = server.ask(path)
            assert (answer.status, answer.body) == (401, b"Anonymous account is restricted")
            assert answer.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("path", [HEAD, "/open/refs/head", "/nobody/refs/head"])
    def test_a_bad_token_is_401_where_none_is_needed_too(self, server: Server, path: str) -> None:
        never_ours = ("x", "a:b", "{}", "a=b", "~" * 9000)
        for token in (*never_ours, "lf_0123456789abcdef_" + "A" * 43, server.reader[:-1]):
            answer = server.ask(path, token)
            assert (answer.status, answer.body) == (401, b"Authentication token invalid")

    def test_a_token_is_checked_for_the_reference_client(self, server: Server) -> None:
        check = "/platform/token/validate"
        assert server.ask(check, server.reader).status == 200
        assert server.ask(check, server.reader[:-1]).status == 401
        assert server.ask(check).status == 401
        expired = server.tokens.create(lasts_ms=1000)
        assert server.ask(check, expired).status == 200
        server.clock.advance(1000)
        assert server.ask(check, expired).status == 401

    def test_an_expired_token_is_401(self, server: Server) -> None:
        token = server.tokens.create(lasts_ms=1000)
        assert server.ask(self.HEAD, token).status == 200
        server.clock.advance(1000)
        answer = server.ask(self.HEAD, token)
        assert (answer.status, answer.body) == (401, b"Authentication token expired")

    @pytest.mark.parametrize(
        "header",
        ["", "Bearer", "Bearer ", "Basic eDp5", "Bearer a b", "Bearer ä", "x", "Bearer\ta"],
    )
    def test_a_header_that_makes_no_sense_is_400(self, server: Server, header: str) -> None:
        answer = server.ask(self.HEAD, headers=[("Authorization", header)])
        assert (answer.status, answer.body) == (400, b"Invalid Bearer token header")

    def test_two_tokens_are_one_too_many(self, server: Server) -> None:
        also = [("Authorization", f"Bearer {server.writer}")]
        assert server.ask(self.HEAD, server.reader, also).status == 400

    def test_a_token_for_another_dataset_sees_nothing(self, server: Server) -> None:
        token = server.tokens.create(Scope.WRITE, dataset=OTHER)
        for path in (self.HEAD, "/nobody/refs/head"):
            answer = server.ask(path, token)
            assert (answer.status, answer.body) == (404, b"")
        answer = server.put(f"/acc/d/data/{name_of(b'x')}", b"x", token)
        assert (answer.status, answer.body) == (404, b"")

    def test_who_reads_may_not_write(self, server: Server) -> None:
        path = f"/acc/d/data/{name_of(b'x')}"
        answer = server.put(path, b"x", server.reader)
        assert (answer.status, answer.body) == (403, b"")
        assert server.ask(path, method="PUT", data=b"x").status == 401
        everything = server.tokens.create(Scope.READ)
        assert server.put(path, b"x", everything).status == 403
        assert path[1:] not in server.disk.objects

    def test_what_is_public_is_read_by_all_and_written_by_few(self, server: Server) -> None:
        elsewhere = server.tokens.create(Scope.WRITE, dataset=OTHER)
        for token in (None, elsewhere):
            assert server.ask("/open/refs/head", token).status == 200
        path = f"/open/data/{name_of(b'x')}"
        assert server.ask(path, method="PUT", data=b"x").status == 401
        assert server.put(path, b"x", elsewhere).status == 403
        assert server.put(path, b"x", server.tokens.create(Scope.WRITE)).status == 200

    def test_a_server_may_let_everybody_read(self) -> None:
        server = Server(anonymous_read=True)
        assert server.ask(self.HEAD).status == 200
        assert server.ask("/nobody/refs/head").status == 404
        assert server.ask(self.HEAD, "bad").status == 401
        path = f"/acc/d/data/{name_of(b'x')}"
        assert server.ask(path, method="PUT", data=b"x").status == 401
        elsewhere = server.tokens.create(Scope.WRITE, dataset=OTHER)
        assert server.put(path, b"x", elsewhere).status == 403
        assert server.put(f"/nobody/data/{name_of(b'x')}", b"x", elsewhere).status == 404

    @pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "OPTIONS"])
    def test_other_methods_are_405(self, server: Server, method: str) -> None:
        assert server.ask(self.HEAD, server.writer, method=method).status == 405


class TestWriting:
    @pytest.mark.parametrize("folder", ["data", "checkpoints"])
    @pytest.mark.parametrize("data", [b"", b"new", LARGE[:-1]], ids=["empty", "small", "large"])
    def test_what_was_put_is_there(self, server: Server, folder: str, data: bytes) -> None:
        path = f"acc/d/{folder}/{name_of(data)}"
        answer = server.put(f"/{path}", data)
        assert (answer.status, answer.body) == (200, b"")
        assert server.disk.objects[path] == data

    def test_other_bytes_than_the_name_says_are_refused(self, server: Server) -> None:
        before = server.disk.objects
        for data in (b"other", LARGE[1:]):
            answer = server.put(f"/acc/d/data/{name_of(b'x')}", data)
            assert (answer.status, "don't match the hash" in answer.message) == (400, True)
        assert server.disk.objects == before

    def test_what_is_there_is_not_written_again(self, server: Server) -> None:
        path = f"/acc/d/data/{name_of(LARGE)}"
        server.store.history.clear()
        assert server.put(path, LARGE).status == 200
        assert "PUT" not in [call.verb for call in server.store.history]
        waiting = [("Expect", "100-continue")]
        assert server.put(path, LARGE, headers=waiting, ends="silently").status == 200

    def test_what_is_there_and_damaged_is_mended(self, server: Server) -> None:
        path = f"acc/d/data/{name_of(LARGE)}"
        server.disk.put(path, b"half")
        assert server.put(f"/{path}", b"half").status == 200, "not looked at"
        assert server.put(f"/{path}", LARGE).status == 200
        assert server.disk.objects[path] == LARGE

    def test_a_body_without_a_length_is_400(self, server: Server) -> None:
        answer = server.put(f"/acc/d/data/{name_of(b'x')}", b"x", length=None)
        assert (answer.status, "Content-Length" in answer.message) == (400, True)

    def test_a_body_of_another_length_is_refused(self, server: Server) -> None:
        before = server.disk.objects
        for length in (0, 2, 4, 3_000_000):
            answer = server.put(f"/acc/d/data/{name_of(b'xyz')}", b"xyz", length=length)
            assert answer.status >= 400
        assert server.disk.objects == before

    def test_too_much_is_413_before_anything_was_sent(self, server: Server) -> None:
        path = f"/acc/d/data/{name_of(b'x')}"
        answer = server.put(path, b"", length=10_000_001, ends="silently")
        assert answer.status == 413

    @pytest.mark.parametrize("data", [b"ha", LARGE[:-3]], ids=["small", "large"])
    def test_a_sender_who_leaves_leaves_nothing(self, server: Server, data: bytes) -> None:
        before = server.disk.objects
        length = len(data) + 3
        answer = server.put(f"/acc/d/data/{name_of(b'x')}", data, length=length, ends="abruptly")
        assert answer.status == 400
        assert server.disk.objects == before

    def test_a_sender_who_falls_silent_is_not_waited_for(self) -> None:
        server = Server(silent_for_s=0.01)
        before = server.disk.objects
        answer = server.put(f"/acc/d/data/{name_of(b'x')}", b"ha", length=3, ends="silently")
        assert answer.status == 408
        assert server.disk.objects == before

    @pytest.mark.parametrize("path", ["refs/head", f"blocks/{name_of(b'x')}"])
    def test_heads_and_blocks_are_not_put(self, server: Server, path: str) -> None:
        before = server.disk.objects
        answer = server.put(f"/acc/d/{path}", b"x")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        assert server.disk.objects == before

    @pytest.mark.parametrize("leaf", ["x", "..", "u" + "A" * 46, "f1220" + "0" * 64])
    def test_only_a_hash_is_a_name(self, server: Server, leaf: str) -> None:
        assert server.put(f"/acc/d/data/{leaf}", b"x").status == 400

    def test_a_delta_table_takes_no_objects_here(self, server: Server) -> None:
        server.disk.put("acc/e/_delta_log/0.json", b"")
        everything = server.tokens.create(Scope.WRITE)
        assert server.put(f"/acc/e/data/{name_of(b'x')}", b"x", everything).status == 404

    def test_a_store_that_fails_is_503(self, server: Server) -> None:
        server.store.rule = on("PUT", Fault.FAIL)
        path = f"/acc/d/data/{name_of(b'x')}"
        assert server.put(path, b"x").status == 503
        assert server.put(path, b"x").status == 200


class TestSignedUrls:
    @staticmethod
    def parts(url: str) -> tuple[str, str]:
        split = urlsplit(url)
        return split.path, split.query

    def test_whoever_has_one_needs_no_token(self, server: Server) -> None:
        links = Links(server.store, server.signer, "http://host")
        key = f"acc/d/data/{name_of(b'x')}"
        path, query = self.parts(links.put(key, 1, lasts_s=60).url)
        assert server.ask(path, method="PUT", data=b"x", query=query).status == 200
        assert server.ask(path, method="GET", query=query).status == 403
        path, query = self.parts(links.get(key, lasts_s=60).url)
        assert server.ask(path, query=query).body == b"x"
        assert server.ask(path, query=query, headers=[("Range", "bytes=0-0")]).status == 206
        assert server.ask(path, method="HEAD", query=query).status == 200
        assert server.ask(path, method="PUT", data=b"x", query=query).status == 403

    def test_it_is_for_one_key_and_one_size_and_a_while(self, server: Server) -> None:
        links = Links(server.store, server.signer, "http://host")
        path, query = self.parts(links.put(f"acc/d/data/{name_of(b'xy')}", 2, lasts_s=60).url)
        for wrong in (
            path.replace("/data/", "/checkpoints/"),
            path.replace("acc/d", "open"),
            path[:-1] + ("0" if path[-1] != "0" else "1"),
        ):
            assert server.ask(wrong, method="PUT", data=b"xy", query=query).status == 403
        assert server.ask(path, method="PUT", data=b"xyz", query=query).status == 403
        assert server.ask(path, method="PUT", data=b"xx", query=query).status == 400
        assert server.ask(path, method="PUT", data=b"xy", query=f"{query}&size=9").status == 403
        server.clock.advance(60_000)
        assert server.ask(path, method="PUT", data=b"xy", query=query).status == 403
        assert server.ask(path, server.writer, method="PUT", data=b"xy", query=query).status == 403
        assert path[1:] not in server.disk.objects

    def test_it_may_show_another_name_than_the_stores(self, server: Server) -> None:
        links = Links(server.store, server.signer, "http://host")
        key = f"acc/d/data/{name_of(b'x')}"
        path, query = self.parts(links.put("elsewhere", 1, lasts_s=60, shown=key).url)
        assert path == f"/{key}"
        assert server.ask(path, method="PUT", data=b"x", query=query).status == 200
        path, query = self.parts(links.get("elsewhere", lasts_s=60, shown=key).url)
        assert server.ask(path, query=query).body == b"x"

    @pytest.mark.parametrize("theirs", [b"mine", b"other bytes", b"same"])
    def test_a_file_that_a_table_gets_meanwhile_is_not_replaced(
        self, server: Server, theirs: bytes
    ) -> None:
        place, mine = "acc/t/part-0.parquet", b"mine"

        def overtake(call: StoreCall) -> None:
            if call.verb in ("PUT", "PUT_IF_ABSENT") and call.paths == (place,):
                server.disk.put(place, theirs)

        server.store.rule = overtake
        links = Links(server.store, server.signer, "http://host")
        shown = f"acc/t/data/{name_of(mine)}/part-0.parquet"
        path, query = self.parts(links.put(place, len(mine), lasts_s=60, shown=shown).url)
        answer = server.ask(path, method="PUT", data=mine, query=query)
        assert answer.status == (200 if theirs == mine else 409)
        assert server.disk.objects[place] == theirs

    def test_a_store_that_can_signs_itself(self, server: Server) -> None:
        links = Links(server.store, None, "http://host", clock=server.clock)
        got = links.get("acc/d/data/x", lasts_s=60, shown="shown")
        assert got.url.startswith("https://signed.invalid/acc/d/data/x?method=GET")
        assert got.expires_at_ms == NOW_MS + 60_000
        assert "method=PUT" in links.put("acc/d/data/x", 1, lasts_s=60).url


def test_slow_uploads_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "UPLOADS_AT_ONCE", 1)
    server = Server(silent_for_s=30)

    async def story() -> tuple[int, int]:
        go, begun = asyncio.Event(), asyncio.Event()

        async def request(method: str, path: str, data: bytes) -> int:
            statuses: list[int] = []

            async def receive() -> dict[str, Any]:
                if data:
                    begun.set()
                    await go.wait()
                return {"type": "http.request", "body": data, "more_body": False}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            headers = [
                (b"authorization", f"Bearer {server.writer}".encode()),
                (b"content-length", str(len(data)).encode()),
            ]
            scope: dict[str, Any] = {
                "type": "http",
                "method": method,
                "path": path,
                "headers": headers,
            }
            scope |= {"query_string": b"", "root_path": "", "http_version": "1.1"}
            await server.app(scope, receive, send)
            return statuses[0]

        slow = asyncio.create_task(request("PUT", f"/acc/d/data/{name_of(b'slow')}", b"slow"))
        await begun.wait()
        quick = await request("GET", "/acc/d/refs/head", b"")
        go.set()
        return quick, await slow

    assert asyncio.run(story()) == (200, 200)


def test_a_client_that_leaves_is_no_failure_of_the_store(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wraps(path: str, pieces: Iterator[bytes], size: int) -> None:
        try:
            list(pieces)
        except Exception as error:
            # As stores do that read in a language of their own.
            raise StorageUnavailable("the store failed", cause=str(error)) from error

    monkeypatch.setattr(server.store, "put_stream", wraps)
    path = f"/acc/d/data/{name_of(LARGE + b'new')}"
    with caplog.at_level("INFO"):
        server.ask(path, server.writer, method="PUT", data=LARGE, length=10**7, ends="abruptly")
    assert [record.levelname for record in caplog.records if "left" in record.message] == ["INFO"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]

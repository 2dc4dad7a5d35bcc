"""The client against a server that obeys, lies, cuts and lets URLs expire."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    Diverged,
    Forbidden,
    HashMismatch,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    MissingFile,
    NotATable,
    ObjectNotFound,
    StorageUnavailable,
    TableNotFound,
    Unauthorized,
)
from lakeferry.storage import open_store
from lakeferry.storage.store import StreamChunk
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.dataset_urls import parse_url
from lakeferry.transfer.client.object_urls import Source, _now_ms
from lakeferry.transfer.client.rate_limit import Rate
from lakeferry.transfer.client.remote_dataset import Patience, Remote, Terms
from lakeferry.transfer.datasets import message_parts
from lakeferry.transfer.datasets.message_parts import PartBounds
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.messages import TransferUrl
from tests.support.history import Append, History
from tests.support.odf import GOLDEN_ODF, AddData, Chain, SetInfo, Slice, hash_of
from tests.support.stores import DictStore
from tests.support.transfer_server import Files, TransferServer, batch
from tests.support.transfers import async_pull, plan_pull, plan_push, pull, push

HASTY = Patience(attempts=3, first_wait_s=0.001, longest_wait_s=0.01, silence_s=30)
QUICK = Pace(answer_ms=30_000, settle_ms=20, commit_ms=30_000, drain_ms=200)


def terms(**changes: Any) -> Terms:
    usual: dict[str, Any] = {"patience": HASTY, "pace": QUICK, "parallel": 4}
    return Terms(**usual | changes)


def chain(appends: int = 3) -> Chain:
    built = Chain()
    for number in range(appends):
        built.append(checkpoint=f"checkpoint {number // 2}")
    return built


def laid_out(built: Chain) -> Files:
    """Return a dataset as it lies in its folder."""
    files = {
        f"{'data' if not data.startswith(b'checkpoint') else 'checkpoints'}/{name}": data
        for name, data in built.objects.items()
    }
    files |= {f"blocks/{name}": data for name, data in built.blocks}
    return files | {"refs/head": built.head.text.encode()}


def with_large_object(size_bytes: int) -> tuple[Chain, str]:
    """Return a dataset with an object of that size, and its path."""
    built = Chain()
    data = bytes(range(256)) * (size_bytes // 256) + b"." * (size_bytes % 256)
    name = Multihash.sha3_256(data)
    built.objects[name] = data
    built.add(AddData(new_data=Slice(name, 0, 9, len(data))))
    return built, f"data/{name}"


def stored(files: Files | None = None) -> DictStore:
    store = DictStore()
    for path, data in (files or {}).items():
        store.put(path, data)
    return store


@pytest.fixture
def server() -> Iterator[TransferServer]:
    with TransferServer(laid_out(chain())) as running:
        yield running


def heard(server: TransferServer) -> list[str]:
    """Return what will be the names of the messages that the server sends."""
    said: list[str] = []

    def note(name: str, message: Any) -> Any:
        said.append(name)
        return message

    server.edit = note
    return said


# --- Pull ---------------------------------------------------------------------------------


def test_a_new_dataset_is_pulled_whole(server: TransferServer) -> None:
    store = stored()
    done = pull(server.url, store, terms())
    assert store.objects == server.files
    assert done.as_document() == {
        "head": server.head,
        "blocks": 4,
        "objects": 5,
        "bytes": sum(len(data) for path, data in server.files.items() if path[0] in "dc"),
        "skipped": 0,
        "changed": True,
    }


def test_what_is_up_to_date_stays_as_it_is(server: TransferServer) -> None:
    store = stored(server.files)
    done = pull(f"odf+{server.url}/", store, terms())
    assert (done.changed, done.blocks, done.objects) == (False, 0, 0)
    assert server.count("GET", "data") == 0


def test_only_what_is_new_travels(server: TransferServer) -> None:
    store = stored(laid_out(chain(2)))
    done = pull(server.url, store, terms())
    assert store.objects.keys() == server.files.keys()
    assert (done.blocks, done.objects, done.skipped) == (1, 2, 0)


def test_objects_that_are_there_are_skipped_and_those_of_another_size_replaced(
    server: TransferServer,
) -> None:
    paths = sorted(path for path in server.files if path.startswith("data/"))
    store = stored({paths[0]: server.files[paths[0]], paths[1]: b"half"})
    done = pull(server.url, store, terms())
    assert (done.objects, done.skipped) == (4, 1)
    assert store.objects == server.files
    assert server.count("GET", paths[0]) == 0


def test_objects_are_asked_for_in_pages(server: TransferServer) -> None:
    server.files = laid_out(chain(20))
    store = stored()
    pages: list[int] = []

    def edit(name: str, message: Any) -> Any:
        if name == "urls":
            pages.append(len(message["object_transfer_strategies"]))
        return message

    server.edit = edit
    done = pull(server.url, store, terms(page=7))
    assert store.objects == server.files
    assert sum(pages) == done.objects == 30
    assert max(pages) <= 7


def test_a_diverged_history_is_refused_and_forced(server: TransferServer) -> None:
    ours = chain(1).add(SetInfo("ours"))
    store = stored(laid_out(ours))
    with pytest.raises(Diverged):
        pull(server.url, store, terms())
    assert store.get("refs/head").decode() == ours.head.text
    assert pull(server.url, store, terms(force=True)).changed
    assert store.get("refs/head").decode() == server.head


def test_another_dataset_is_not_replaced_even_by_force(server: TransferServer) -> None:
    store = stored(laid_out(Chain(b"\xed\x01" + bytes(32))))
    before = store.objects
    with pytest.raises(Diverged, match="a different dataset"):
        pull(server.url, store, terms(force=True))
    assert store.objects == before


def test_a_client_that_is_ahead_is_told_so(server: TransferServer) -> None:
    with pytest.raises(Diverged):
        pull(server.url, stored(laid_out(chain(5))), terms())


@pytest.mark.parametrize("cut_at", range(1, 9))
def test_a_pull_that_is_cut_at_any_message_ends_right(server: TransferServer, cut_at: int) -> None:
    server.cut_at = cut_at
    store = stored()
    done = pull(server.url, store, terms(page=2))
    assert store.objects == server.files
    assert server.sessions == 2
    assert (done.blocks, done.objects + done.skipped, done.changed) == (4, 5, True)


def test_a_server_that_always_cuts_is_given_up(server: TransferServer) -> None:
    server.edit = lambda _name, _message: (1011, "")
    with pytest.raises(StorageUnavailable):
        pull(server.url, stored(), terms())
    assert server.sessions == HASTY.attempts


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_large_object_goes_on_where_it_broke_off(
    server: TransferServer, knows_ranges: bool
) -> None:
    built, path = with_large_object((5 << 20) + 7)
    server.files = laid_out(built)
    server.break_after[path] = 3 << 20
    server.knows_ranges = knows_ranges
    store = stored()
    pull(server.url, store, terms())
    assert store.objects == server.files
    ranges = [asked for _, asked_path, asked in server.asked if asked_path == path]
    assert ranges[0] is None
    assert ranges[1] is not None
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) > 0
    assert len(ranges) == 2


def test_a_large_object_whose_url_expires_inside_goes_on_with_the_next_one(
    server: TransferServer,
) -> None:
    built, path = with_large_object(5 << 20)
    server.files = laid_out(built)
    server.break_after[path] = 2 << 20
    server.refuses_after_break = True
    said = heard(server)
    store = stored()
    pull(server.url, store, terms())
    assert store.objects == server.files
    assert said.count("urls") == 2
    ranges = [asked for _, asked_path, asked in server.asked if asked_path == path]
    assert len(ranges) == 3
    assert ranges[0] is None
    assert ranges[1] == ranges[2] is not None


def test_urls_that_expired_are_asked_for_again(server: TransferServer) -> None:
    for path in server.files:
        if path.startswith("data/"):
            server.refusals[path] = 1
    store = stored()
    pull(server.url, store, terms())
    assert store.objects == server.files
    assert server.sessions == 1


def test_a_url_is_stale_near_its_end_unless_the_clocks_differ() -> None:
    def stale(received_ms: int, expires_ms: int | None) -> bool:
        now = _now_ms()
        expires_at_ms = None if expires_ms is None else now + expires_ms
        url = TransferUrl("http://h/x", expires_at_ms=expires_at_ms)
        return Source(url, now + received_ms).is_stale

    assert not stale(0, None)
    assert not stale(0, 60_000)
    assert stale(-3_600_000, 5_000)
    assert stale(-3_600_000, -1)
    # One that lives a second is worth trying, and so is one that was past its time at once.
    assert not stale(0, 1_000)
    assert not stale(0, -3_600_000)


def test_urls_that_are_always_refused_are_an_error(server: TransferServer) -> None:
    server.refusals.update({path: 1000 for path in server.files if path.startswith("data/")})
    with pytest.raises(Forbidden, match="refuses the URL"):
        pull(server.url, stored(), terms())


def test_answers_that_may_pass_are_asked_for_again(server: TransferServer) -> None:
    server.statuses = {path: [500, 503] for path in server.files if path.startswith("data/")}
    server.statuses["pull"] = [503]
    store = stored()
    pull(server.url, store, terms())
    assert store.objects == server.files


def test_a_missing_object_is_an_error_and_nothing_is_committed(server: TransferServer) -> None:
    del server.files[next(path for path in server.files if path.startswith("data/"))]
    store = stored()
    with pytest.raises(MissingFile):
        pull(server.url, store, terms())
    assert not any(path.startswith(("blocks", "refs")) for path in store.objects)


# --- Servers that lie ---------------------------------------------------------------------


def refused(
    server: TransferServer, error: type[LakeferryError] | tuple[type[LakeferryError], ...]
) -> DictStore:
    """Pull, and see that it fails so, and that no block and no head was stored."""
    store = stored()
    with pytest.raises(error):
        pull(server.url, store, terms())
    assert not any(path.startswith(("blocks", "refs")) for path in store.objects)
    return store


def lying(name: str, lie: Any) -> Callable[[str, Any], Any]:
    """Return what says something else in place of one message, or changes it."""

    def edit(what: str, message: Any) -> Any:
        if what != name:
            return message
        return lie(message) if callable(lie) else lie

    return edit


def test_an_object_with_another_hash_is_not_stored(server: TransferServer) -> None:
    path = next(path for path in server.files if path.startswith("data/"))
    server.corrupt.add(path)
    assert path not in refused(server, HashMismatch).objects


def test_a_large_object_with_another_hash_is_not_stored(server: TransferServer) -> None:
    built, path = with_large_object(3 << 20)
    server.files = laid_out(built)
    server.corrupt.add(path)
    assert path not in refused(server, HashMismatch).objects


def test_an_object_of_another_size_is_not_read(server: TransferServer) -> None:
    path = next(path for path in server.files if path.startswith("data/"))
    server.files[path] += b"more"
    assert path not in refused(server, HashMismatch).objects


def test_a_huge_size_is_refused_before_anything_is_asked_for(server: TransferServer) -> None:
    built = Chain().add(AddData(new_data=Slice(hash_of("x"), 0, 9, 1 << 62)))
    server.files = laid_out(built)
    refused(server, LimitExceeded)
    assert server.count("GET", "data") == 0


def test_blocks_under_wrong_names_or_out_of_order_are_refused(server: TransferServer) -> None:
    entries = [(name.text, data) for name, data in chain().blocks]
    swapped = [(entries[0][0], entries[1][1]), *entries[1:]]
    for wrong in (swapped, entries[::-1], entries[1:], [*entries, entries[0]], []):
        server.edit = lying("blocks", {"blocks": batch(wrong)})
        refused(server, (HashMismatch, InvalidInput, Diverged))
    for name in ("../../etc/passwd", "/etc/passwd", "blocks/x"):
        server.edit = lying("blocks", {"blocks": batch([(name, b"x")])})
        refused(server, InvalidInput)
    assert server.count("GET", "data") == 0


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://localhost:{port}/x",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:{port}@evil.example/x",
        "http://user@127.0.0.1:{port}/x",
        "//evil.example/x",
    ],
)
def test_urls_to_other_places_are_refused_without_being_asked(
    server: TransferServer, url: str
) -> None:
    def elsewhere(message: Any) -> Any:
        for one in message["object_transfer_strategies"]:
            one["download_from"]["url"] = url.format(port=server.port)
        return message

    server.edit = lying("urls", elsewhere)
    store = refused(server, (Forbidden, InvalidInput))
    assert store.objects == {}
    assert server.count("GET", "data") == 0


def test_a_host_that_the_user_allows_is_asked(server: TransferServer) -> None:
    server.url_base = server.url.replace("127.0.0.1", "localhost")
    store = stored()
    with pytest.raises(Forbidden, match="another host") as refusal:
        pull(server.url, store, terms())
    assert refusal.value.remedy is not None
    assert "--allow-host localhost" in refusal.value.remedy
    with pytest.raises(Forbidden):
        pull(server.url, store, terms(allowed_hosts=("localhost:1",)))
    pull(server.url, store, terms(allowed_hosts=("localhost",)))
    assert store.objects == server.files


def test_a_redirect_is_followed_only_to_where_one_may_go(server: TransferServer) -> None:
    server.redirect_to = server.url.replace("127.0.0.1", "localhost")
    assert not any(path.startswith("data/") for path in refused(server, Forbidden).objects)


def test_a_handshake_follows_no_redirect(server: TransferServer) -> None:
    with TransferServer(server.files) as other:
        server.redirect_sockets_to = f"{other.url}/pull"
        store = stored()
        pull(server.url, store, terms())
        assert store.objects == server.files
        with pytest.raises(Forbidden, match="another place"):
            push(stored(laid_out(chain(4))), server.url, terms())
        assert other.asked == []


def test_a_token_goes_to_no_other_host(server: TransferServer) -> None:
    with TransferServer(server.files) as other:
        server.token = "secret"
        server.redirect_to = other.url.replace("127.0.0.1", "localhost")
        store = stored()
        pull(server.url, store, terms(token="secret", allowed_hosts=("localhost",)))
        assert store.objects == server.files
        assert other.count("GET", "data") == 3
        assert other.tokens_seen == {None}


@pytest.mark.parametrize("lie", [b"binary", "[" * 100_000, "{}", "x", '{"Ok":{}}', "null"])
@pytest.mark.parametrize("name", ["plan", "blocks", "urls"])
def test_nonsense_ends_the_pull(server: TransferServer, name: str, lie: Any) -> None:
    server.edit = lying(name, lie)
    refused(server, (InvalidInput, LimitExceeded))
    assert server.sessions == 1


# --- Who is let in ------------------------------------------------------------------------


def test_refusals_are_errors_by_their_kind(server: TransferServer) -> None:
    server.token = "right"
    with pytest.raises(Unauthorized):
        pull(server.url, stored(), terms(token="wrong"))
    with pytest.raises(Unauthorized):
        push(stored(laid_out(chain(4))), server.url, terms())
    pull(server.url, stored(), terms(token="right"))
    server.statuses = {"push": [403]}
    with pytest.raises(Forbidden):
        push(stored(laid_out(chain(4))), server.url, terms(token="right"))
    with pytest.raises(ObjectNotFound):
        pull(f"{server.url}/nothing", stored(), terms(token="right"))


def test_another_version_is_incompatible(
    server: TransferServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "VERSION", 2)
    with pytest.raises(IncompatibleVersion):
        pull(server.url, stored(), terms())


@pytest.mark.parametrize(
    "url", ["ftp://h/d", "http://", "d", "http://u:p@h/d", "http://h/d?x=1", "odf+file:///d"]
)
def test_what_is_no_url_of_a_dataset_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        parse_url(url)


def test_what_a_host_may_be() -> None:
    async def admitted(url: str, server: str, *allowed: str) -> bool:
        async with Remote.open(server, terms(allowed_hosts=allowed)) as remote:
            try:
                remote.admit(url)
            except Forbidden:
                return False
            return True

    def check(url: str, server: str, *allowed: str) -> bool:
        return asyncio.run(admitted(url, server, *allowed))

    assert check("http://h:9000/x", "http://h/d")
    assert check("https://h/x", "http://h/d")
    assert not check("http://h/x", "https://h/d")
    assert check("http://h/x", "https://h/d", "h")
    assert check("https://b.s3.example.com/x", "https://h/d", "*.s3.example.com")
    assert not check("https://s3.example.com.evil/x", "https://h/d", "*.s3.example.com")
    assert not check("https://xs3.example.com/x", "https://h/d", "*.s3.example.com")
    assert check("http://[::1]:80/x", "https://h/d", "[::1]")
    with pytest.raises(InvalidInput):
        terms(allowed_hosts=("http://h/",))
    for host in ("a..example.com", f"{'a' * 64}.example.com"):
        with pytest.raises(InvalidInput, match="real host"):
            check(f"http://{host}/x", "http://h/d", "*.example.com")


# --- Simple -------------------------------------------------------------------------------


@pytest.fixture
def files() -> Iterator[Callable[[Path], str]]:
    running: list[ThreadingHTTPServer] = []

    def serve(folder: Path) -> str:
        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

        handler = functools.partial(Quiet, directory=str(folder))
        http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        running.append(http)
        return f"http://127.0.0.1:{http.server_address[1]}"

    yield serve
    for http in running:
        http.shutdown()
        http.server_close()


def tree(folder: Path) -> Files:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.skipif(not GOLDEN_ODF.is_dir(), reason="no golden dataset beside the repository")
def test_the_golden_dataset_comes_from_plain_files_byte_for_byte(
    files: Callable[[Path], str], tmp_path: Path
) -> None:
    url = files(GOLDEN_ODF)
    done = pull(f"{url}/dataset-a", open_store(str(tmp_path / "d")), terms())
    assert tree(tmp_path / "d") == tree(GOLDEN_ODF / "dataset-a")
    assert (done.blocks, done.objects) == (6, 5)
    assert not pull(f"{url}/dataset-a", open_store(str(tmp_path / "d")), terms()).changed


@pytest.mark.skipif(not GOLDEN_ODF.is_dir(), reason="no golden dataset beside the repository")
def test_the_golden_dataset_goes_to_a_server_and_back_byte_for_byte(tmp_path: Path) -> None:
    golden = tree(GOLDEN_ODF / "dataset-a")
    with TransferServer() as server:
        push(open_store(str(GOLDEN_ODF / "dataset-a")), server.url, terms())
        assert server.files == golden
        pull(server.url, open_store(str(tmp_path / "d")), terms())
    assert tree(tmp_path / "d") == golden


def test_files_alone_follow_the_same_rules(server: TransferServer) -> None:
    server.has_websocket = False
    store = stored(laid_out(chain(1)))
    done = pull(server.url, store, terms())
    assert store.objects.keys() == server.files.keys()
    assert (done.blocks, done.objects) == (2, 3)
    assert server.count("GET", "blocks") == 2
    with pytest.raises(Diverged):
        pull(server.url, stored(laid_out(chain(5))), terms())
    ours = stored(laid_out(chain(1).add(SetInfo("ours"))))
    with pytest.raises(Diverged):
        pull(server.url, ours, terms())
    pull(server.url, ours, terms(force=True))
    assert ours.get("refs/head").decode() == server.head
    with pytest.raises(Diverged, match="a different dataset"):
        pull(server.url, stored(laid_out(Chain(b"\xed\x01" + bytes(32)))), terms(force=True))


def test_files_that_lie_are_refused(server: TransferServer) -> None:
    server.has_websocket = False
    for path in [path for path in server.files if not path.startswith("refs")]:
        server.corrupt = {path}
        refused(server, HashMismatch)
    server.corrupt = set()
    server.files["blocks/" + chain().blocks[1][0].text] = b"x" * 10
    refused(server, HashMismatch)
    server.files["refs/head"] = b"x" * 1000
    refused(server, LakeferryError)


def test_plain_files_of_an_odf_dataset_dont_go_into_a_delta_table(server: TransferServer) -> None:
    server.has_websocket = False
    store = History().then(Append(1)).store()
    before = dict(store.objects)
    for force in (False, True):
        with pytest.raises(Diverged) as refused_it:
            pull(server.url, store, terms(force=force))
        assert "another kind" in str(refused_it.value)
    assert {path for path in store.objects if "_lakeferry" not in path} == set(before)


# --- Push ---------------------------------------------------------------------------------


def test_a_new_dataset_is_pushed_whole() -> None:
    store = stored(laid_out(chain()))
    with TransferServer() as server:
        done = push(store, server.url, terms())
        assert server.files == store.objects
        assert (done.blocks, done.objects, done.skipped, done.changed) == (4, 5, 0, True)
        again = push(store, server.url, terms())
    assert (again.blocks, again.objects, again.changed) == (0, 0, False)
    assert server.sessions == 1


def test_a_push_sends_only_what_is_new(server: TransferServer) -> None:
    store = stored(laid_out(chain(5)))
    done = push(store, server.url, terms(page=1))
    assert server.files == store.objects
    assert (done.blocks, done.objects) == (2, 3)


def test_a_push_skips_what_the_server_has() -> None:
    built = chain()
    with TransferServer({k: v for k, v in laid_out(built).items() if k.startswith("data")}) as s:
        done = push(stored(laid_out(built)), s.url, terms())
    assert (done.objects, done.skipped) == (2, 3)


def test_a_push_to_another_history_is_refused_and_forced(server: TransferServer) -> None:
    ours = stored(laid_out(chain(1).add(SetInfo("ours"))))
    with pytest.raises(Diverged):
        push(ours, server.url, terms())
    assert server.sessions == 0
    push(ours, server.url, terms(force=True))
    assert server.head == ours.get("refs/head").decode()


def test_somebody_else_who_was_quicker_is_told_of(server: TransferServer) -> None:
    theirs = chain(3).add(SetInfo("theirs"))

    def overtake(name: str, message: Any) -> Any:
        heads = {"actual_head": server.head, "expected_head": theirs.head.text}
        return {"Err": {"InvalidHead": heads}} if name == "accepted" else message

    server.edit = overtake
    with pytest.raises(CommitConflict):
        push(stored(laid_out(chain(5))), server.url, terms())


@pytest.mark.parametrize("cut_at", range(1, 14))
def test_a_push_that_is_cut_at_any_message_ends_right(cut_at: int) -> None:
    store = stored(laid_out(chain()))
    with TransferServer() as server:
        server.cut_at = cut_at
        done = push(store, server.url, terms(page=3))
        assert server.files == store.objects
        assert done.changed
        assert done.objects + done.skipped == 5
        puts = [path for method, path, _ in server.asked if method == "PUT"]
        assert len(puts) == len(set(puts))


def test_a_history_too_long_for_a_message_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_parts, "PUSHED", PartBounds(8000))
    store = stored(laid_out(chain(400)))
    with TransferServer() as server:
        done = push(store, server.url, terms())
        assert server.files == store.objects
        assert server.sessions > 2
        assert done.blocks == 401


def test_progress_is_reported_and_a_late_question_is_no_confirmation() -> None:
    with TransferServer() as server:
        server.ticks = 2
        store = stored(laid_out(chain()))
        push(store, server.url, terms())
        assert server.files == store.objects


def test_uploads_are_made_again_and_their_urls_renewed() -> None:
    built, path = with_large_object(9 << 20)
    store = stored(laid_out(built))
    with TransferServer() as server:
        server.refusals[path] = 1
        server.break_after[path] = 1
        server.statuses[path] = [503]
        push(store, server.url, terms())
        assert server.files == store.objects


def test_an_object_that_was_put_meanwhile_is_there() -> None:
    files = laid_out(chain(1))
    path = next(path for path in files if path.startswith("data/"))

    def bind(name: str, message: Any) -> Any:
        if name == "urls":
            for one in message["Ok"]["object_transfer_strategies"]:
                one["upload_to"]["headers"] += [{"name": "If-None-Match", "value": "*"}]
            # Somebody else's push, after the URLs were made.
            running.files[path] = files[path]
        return message

    with TransferServer() as running:
        running.edit = bind
        running.statuses[path] = [412]
        done = push(stored(files), running.url, terms())
        assert done.changed
        assert running.files == files
        assert running.count("PUT", path) == 1


def in_parts(server: TransferServer, path: str, *numbers: int, part_bytes: int = 2 << 20) -> None:
    """Have the server ask for parts of an object, at addresses of their own."""

    def tell(name: str, message: Any) -> Any:
        if name == "urls":
            for one in message["Ok"]["object_transfer_strategies"]:
                if one["upload_to"] and one["upload_to"]["url"].endswith(path):
                    one["upload_to"]["lakeferry_parts"] = {
                        "url": f"{server.url}/parts",
                        "part_bytes": part_bytes,
                        "missing": [[number, f"number={number}"] for number in numbers],
                        "is_all": True,
                    }
        return message

    server.edit = tell


def test_a_large_object_goes_in_the_parts_that_the_server_asks_for() -> None:
    built, path = with_large_object((5 << 20) + 7)
    files = laid_out(built)
    with TransferServer() as running:
        in_parts(running, path, 1, 3)
        push(stored(files), running.url, terms())
        whole = files[path]
        assert running.parts == {1: whole[: 2 << 20], 3: whole[4 << 20 :]}
        assert running.count("PUT", path) == 0


def test_parts_that_an_object_doesnt_have_arent_sent() -> None:
    built, path = with_large_object(5 << 20)
    for numbers in ((0,), (4,), (1, 1)):
        with TransferServer() as running:
            in_parts(running, path, *numbers)
            with pytest.raises(InvalidInput, match="parts"):
                push(stored(laid_out(built)), running.url, terms())
            assert running.parts == {}
            assert running.head is None


def test_parts_go_to_no_other_host() -> None:
    built, path = with_large_object(5 << 20)
    with TransferServer() as running:
        in_parts(running, path, 1)
        tell = running.edit
        running.edit = lambda name, message: json.loads(
            json.dumps(tell(name, message)).replace(f"{running.url}/parts", "http://192.0.2.1/x")
        )
        with pytest.raises(Forbidden, match="another host"):
            push(stored(laid_out(built)), running.url, terms())


def test_without_a_condition_a_412_is_a_refusal() -> None:
    files = laid_out(chain(1))
    with TransferServer() as server:
        server.statuses = {path: [412] * 9 for path in files if path.startswith("data/")}
        with pytest.raises(StorageUnavailable, match="can't be transferred"):
            push(stored(files), server.url, terms())
        assert server.head is None


@pytest.mark.parametrize("size_bytes", [100, 9 << 20])
def test_a_damaged_copy_is_not_sent(size_bytes: int) -> None:
    built, path = with_large_object(size_bytes)
    store = stored(laid_out(built) | {path: b"x" * size_bytes})
    with TransferServer() as server:
        with pytest.raises(HashMismatch):
            push(store, server.url, terms())
        assert path not in server.files
        assert server.head is None


def test_a_server_that_confirms_without_committing_isnt_believed(server: TransferServer) -> None:
    server.commits = False
    impatient = Pace(answer_ms=30_000, settle_ms=10, commit_ms=50, drain_ms=200)
    with pytest.raises(CommitStateUnknown):
        push(stored(laid_out(chain(4))), server.url, terms(pace=impatient))
    assert server.sessions == 2


def test_a_refusal_at_the_end_is_an_error(server: TransferServer) -> None:
    reason = '{"Err":{"RefCollision":{"dataset_id":"did:odf:fed01"}}}'
    server.edit = lambda name, message: (1011, reason) if name == "confirmed" else message
    server.commits = False
    with pytest.raises(CommitConflict):
        push(stored(laid_out(chain(4))), server.url, terms())


def test_uploads_go_to_no_other_host(server: TransferServer) -> None:
    server.url_base = server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(Forbidden):
        push(stored(laid_out(chain(4))), server.url, terms())
    assert server.count("PUT", "") == 0


# --- Places -------------------------------------------------------------------------------


def test_places_that_hold_something_else_are_refused(server: TransferServer) -> None:
    with pytest.raises(TableNotFound):
        push(stored(), server.url, terms())
    with pytest.raises(NotATable):
        push(stored({"data/x": b""}), server.url, terms())
    with pytest.raises(NotATable):
        pull(server.url, stored({"photos/x": b""}), terms())
    broken = stored({"_delta_log/00000000000000000000.json": b""})
    with pytest.raises(CorruptLog):
        pull(server.url, broken, terms())
    with pytest.raises(CorruptLog):
        push(broken, server.url, terms())
    assert server.asked == []
    server.files = laid_out(chain())
    with pytest.raises(Diverged):
        pull(server.url, History().then(Append(1)).store(), terms())
    with pytest.raises(Diverged, match="another kind"):
        pull(server.url, History().then(Append(1)).store(), terms(force=True))


def test_every_byte_of_every_object_is_taken_from_the_allowance(
    server: TransferServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    async def take(_: Rate, size_bytes: int) -> None:
        taken.append(size_bytes)

    monkeypatch.setattr(Rate, "take", take)
    built, _ = with_large_object((5 << 20) + 7)
    server.files = laid_out(built)
    store = stored()
    done = pull(server.url, store, terms(limit_rate=1000))
    assert sum(taken) == done.bytes > 5 << 20
    taken.clear()
    with TransferServer() as other:
        assert push(store, other.url, terms()).bytes == sum(taken)
    taken.clear()
    with TransferServer() as other:
        push(stored(laid_out(chain())), other.url, terms())
    assert len(taken) == 5


def test_nothing_goes_on_after_a_pull_is_cancelled(server: TransferServer) -> None:
    built, path = with_large_object(8 << 20)
    server.files = laid_out(built)
    began = threading.Event()

    class Watched(DictStore):
        def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
            def watched() -> Iterator[StreamChunk]:
                yield next(chunks)
                began.set()
                yield from chunks

            super().put_stream(path, watched(), size_bytes)

    store = Watched()
    server.break_after[path] = 4 << 20
    server.statuses[path] = []

    async def cancelled() -> None:
        patient = Patience(attempts=3, first_wait_s=60, longest_wait_s=60)
        work = asyncio.create_task(async_pull(server.url, store, terms(patience=patient)))
        await asyncio.get_running_loop().run_in_executor(None, began.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(cancelled())
    assert store.objects == {}


# --- Plans --------------------------------------------------------------------------------


@pytest.mark.parametrize("has_websocket", [True, False])
def test_a_plan_says_what_a_pull_would_do_and_does_nothing(
    server: TransferServer, has_websocket: bool
) -> None:
    server.has_websocket = has_websocket
    store = stored(laid_out(chain(1)))
    before = store.objects
    (foreseen,) = plan_pull(server.url, store, terms())
    assert store.objects == before
    done = pull(server.url, store, terms()).as_document()
    assert foreseen == {"op": "pull"} | {k: done[k] for k in ("head", "blocks", "objects", "bytes")}
    assert plan_pull(server.url, store, terms()) == []


def test_a_plan_says_what_a_push_would_do_and_does_nothing(server: TransferServer) -> None:
    store = stored(laid_out(chain(5)))
    before = dict(server.files)
    (foreseen,) = plan_push(store, server.url, terms())
    assert (server.files, server.sessions) == (before, 0)
    assert (foreseen["op"], foreseen["blocks"], foreseen["objects"]) == ("push", 2, 4)
    push(store, server.url, terms())
    assert plan_push(store, server.url, terms()) == []

"""A client of the Smart Transfer Protocol, written by hand in the reference dialect.

It shares nothing with ours but the reader of blocks: JSON, tar and WebSocket are the standard
library's and the ``websockets`` package's. Every message can also be sent by itself, in any
order, which is what a test of a server wants. A dataset is its files by their names.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from lakeferry.transfer.chain import odf_blocks
from tests.support.odf import Chain

Files = dict[str, bytes]
WITHIN_S = 60
LARGEST_MESSAGE_BYTES = 64 << 20
LARGEST_FRAME_BYTES = 16 << 20


class Refused(Exception):
    """The handshake's answer wasn't 101."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body


class Closed(Exception):
    """The server closed, and what it said."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason

    @property
    def document(self) -> Any:
        return json.loads(self.reason)

    @property
    def internal(self) -> tuple[str, str]:
        """The step of the dialogue and the code that an internal failure has."""
        failure = self.document["Err"]["Internal"]
        [step] = failure["phase"].values()
        return step, failure.get("code", "")


def files_of(built: Chain) -> Files:
    """Return the files of a dataset."""
    files = {f"blocks/{name}": data for name, data in built.blocks}
    for name, data in built.objects.items():
        files[f"{'data' if data.startswith(b'rows') else 'checkpoints'}/{name}"] = data
    return {**files, "refs/head": built.head.text.encode()}


def run_of(files: Mapping[str, bytes], after: str | None = None) -> list[tuple[str, bytes]]:
    """Return the blocks that follow one, oldest first, by their names."""
    run: list[tuple[str, bytes]] = []
    current: str | None = files["refs/head"].decode()
    while current is not None and current != after:
        data = files[f"blocks/{current}"]
        run.append((current, data))
        before = odf_blocks.parse_odf_block(data).prev_hash
        current = before.text if before else None
    assert current == after
    return run[::-1]


def objects_of(run: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """Return what the reference client asks URLs for: newest block first, duplicates included."""
    return [
        {
            "object_type": ref.kind.value,
            "physical_hash": ref.hash.text,
            "size": ref.size_bytes,
        }
        for _, data in reversed(run)
        for ref in odf_blocks.parse_odf_block(data).objects
    ]


def path_of(one: Mapping[str, Any]) -> str:
    folder = {"DataSlice": "data", "Checkpoint": "checkpoints"}[one["object_type"]]
    return f"{folder}/{one['physical_hash']}"


def packed(run: Sequence[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in run:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


def batch_of(run: Sequence[tuple[str, bytes]], payload: bytes | None = None) -> dict[str, Any]:
    return {
        "num_blocks": len(run),
        "media_type": "application/tar+gzip",
        "encoding": "raw",
        "payload": list(packed(run) if payload is None else payload),
    }


def name_of(data: bytes) -> str:
    return "f1620" + hashlib.sha3_256(data).hexdigest()


def fetch(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    return _http(urllib.request.Request(url, headers=dict(headers or {})))


def put(transfer: Mapping[str, Any], data: bytes) -> int:
    """Put an object where a server said, with the headers that it said."""
    headers = {row["name"]: row["value"] for row in transfer["headers"]}
    headers["Content-Type"] = "application/octet-stream"
    request = urllib.request.Request(transfer["url"], data, headers, method="PUT")
    return _http(request)[0]


def _http(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


@dataclass
class Dialogue:
    """An open session."""

    socket: ClientConnection

    def say(self, document: Any) -> None:
        try:
            self.socket.send(document if isinstance(document, str) else json.dumps(document))
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    def hear(self) -> Any:
        try:
            text = self.socket.recv(WITHIN_S)
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        assert isinstance(text, str)
        return json.loads(text)

    def ask(self, document: Any) -> Any:
        self.say(document)
        return self.hear()

    # --- Push, a message at a time --------------------------------------------------

    def request_push(
        self, current_head: str | None, *, force: bool = False, visibility: str = "Private"
    ) -> Any:
        plan = dict.fromkeys(
            ("num_blocks", "num_objects", "num_records", "bytes_in_raw_blocks"), 0
        ) | {"bytes_in_raw_objects": 0}
        return self.ask(
            {
                "current_head": current_head,
                "transfer_plan": plan,
                "force_update_if_diverged": force,
                "visibility_for_created_dataset": visibility,
            }
        )

    def send_blocks(self, run: Sequence[tuple[str, bytes]], payload: bytes | None = None) -> Any:
        return self.ask({"new_blocks": batch_of(run, payload)})

    def urls(self, objects: Sequence[Any], *, is_truncated: bool = False) -> list[dict[str, Any]]:
        answer = self.ask({"object_files": list(objects), "is_truncated": is_truncated})
        strategies: list[dict[str, Any]] = answer["Ok"]["object_transfer_strategies"]
        assert [each["object_file"] for each in strategies] == list(objects)
        return strategies

    def upload(self, files: Mapping[str, bytes], strategies: Sequence[Mapping[str, Any]]) -> int:
        """Put what has to be put, and return how much that was."""
        count = 0
        for each in strategies:
            if each["push_strategy"] == "SkipUpload":
                assert each["upload_to"] is None
                continue
            assert each["push_strategy"] == "HttpUpload"
            assert put(each["upload_to"], files[path_of(each["object_file"])]) == 200
            count += 1
        return count

    def complete(self) -> Any:
        self.say({"details": "Complete"})
        return self.ask({})


@dataclass
class ReferenceClient:
    """Pushes and pulls one dataset as the reference implementation does."""

    url: str
    """The dataset's, without a slash behind it."""
    token: str | None = None
    headers: dict[str, str] = field(default_factory=lambda: {"x-odf-smtp-version": "1"})

    @property
    def authorization(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @contextmanager
    def open(self, operation: str, **more: Any) -> Iterator[Dialogue]:
        """Open a session; leaving it is a clean Close."""
        url = f"{self.url}/{operation}".replace("http", "ws", 1)
        try:
            socket = connect(
                url,
                additional_headers={**self.headers, **self.authorization},
                compression=None,
                ping_interval=None,
                max_size=(LARGEST_MESSAGE_BYTES, LARGEST_FRAME_BYTES),
                proxy=None,
                open_timeout=WITHIN_S,
                **more,
            )
        except InvalidStatus as refused:
            response = refused.response
            raise Refused(response.status_code, response.body.decode()) from None
        with socket:
            yield Dialogue(socket)
            socket.close(1000, f"Client {operation} flow succeeded")

    def refusal(self, operation: str) -> tuple[int, str]:
        """Return how the handshake is refused."""
        try:
            with self.open(operation):
                raise AssertionError("it was let in")
        except Refused as refused:
            return refused.status, refused.body

    def head(self) -> str | None:
        status, body = fetch(f"{self.url}/refs/head", self.authorization)
        assert status in (200, 404), (status, body)
        return body.decode() if status == 200 else None

    def pull(self, begin_after: str | None = None, *, force: bool = False) -> Files:
        """Return what is new, all files of it; nothing if there is nothing."""
        with self.open("pull") as session:
            plan = session.ask(
                {
                    "begin_after": begin_after,
                    "stop_at": None,
                    "force_update_if_diverged": force,
                }
            )["Ok"]["transfer_plan"]
            if plan["num_blocks"] == 0:
                return {}
            batch = session.ask({})["blocks"]
            assert batch["media_type"] == "application/tar+gzip"
            assert batch["encoding"] == "raw"
            with tarfile.open(fileobj=io.BytesIO(bytes(batch["payload"])), mode="r:gz") as archive:
                run = [(each.name, archive.extractfile(each).read()) for each in archive]  # type: ignore[union-attr]
            assert len(run) == batch["num_blocks"] == plan["num_blocks"]
            found = {f"blocks/{name}": data for name, data in run}
            assert all(name_of(data) == name for name, data in run)
            objects = objects_of(run)
            assert len(objects) == plan["num_objects"]
            for each in self._downloads(session, objects):
                found[path_of(each["object_file"])] = self._download(each)
            return {**found, "refs/head": run[-1][0].encode()}

    def _downloads(self, session: Dialogue, objects: list[Any]) -> list[dict[str, Any]]:
        if not objects:
            return []
        answer = session.ask({"object_files": objects})["object_transfer_strategies"]
        assert [each["object_file"] for each in answer] == objects
        return list(answer)

    def _download(self, each: Mapping[str, Any]) -> bytes:
        assert each["pull_strategy"] == "HttpDownload"
        source = each["download_from"]
        headers = {row["name"]: row["value"] for row in source["headers"]}
        status, data = fetch(source["url"], headers)
        assert status == 200
        assert name_of(data) == each["object_file"]["physical_hash"]
        return data

    def push(
        self,
        files: Mapping[str, bytes],
        *,
        current_head: str | None = "ask",
        force: bool = False,
        visibility: str = "Private",
    ) -> int:
        """Push a dataset; return how many objects had to be sent. What is refused is raised."""
        head = self.head() if current_head == "ask" else current_head
        known = head is not None and f"blocks/{head}" in files
        run = run_of(files, head if known else None)
        if not run:
            return 0
        with self.open("push") as session:
            answer = session.request_push(head, force=force, visibility=visibility)
            if answer != {"Ok": {}}:
                raise Closed(0, json.dumps(answer))
            assert session.send_blocks(run) == {"Ok": {}}
            count = session.upload(files, session.urls(objects_of(run)))
            assert session.complete() == {}
        return count


def _closed(closed: ConnectionClosed) -> Closed:
    if closed.rcvd is None:
        return Closed(1006, "")
    return Closed(closed.rcvd.code, closed.rcvd.reason)

"""A server of one ODF dataset in a thread, written by hand from the wire's description.

It speaks the reference dialect in plain dictionaries, shares no code with our own server or
machines, and does as it is told: it lies (``edit``), cuts (``cut_at``), lets URLs expire
(``refusals``), breaks objects off (``break_after``), sends elsewhere (``url_base``), confirms
without committing, or has nothing but files.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from aiohttp import WSMsgType, web

from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash

Files = dict[str, bytes]
NAME = "acc/d"


class Cut(Exception):
    """The connection is to be gone now."""


class TransferServer:
    """The dataset ``files``, at ``url``."""

    def __init__(self, files: Files | None = None) -> None:
        self.files: Files = dict(files or {})
        self.has_websocket = True
        self.token: str | None = None
        self.cut_at: int | None = None
        """The number of the message, counted from 1 over all sessions, that isn't delivered."""
        self.edit: Callable[[str, Any], Any] = lambda _, message: message
        """Changes a message by its name before it is sent."""
        self.refusals: Counter[str] = Counter()
        """How many more times a path below the dataset answers 403."""
        self.break_after: dict[str, int] = {}
        """After how many bytes a path breaks off, once."""
        self.refuses_after_break = False
        """Whether the URL of what broke off is past its time then."""
        self.statuses: dict[str, list[int]] = {}
        """What a path answers next, instead of what it should."""
        self.corrupt: set[str] = set()
        self.knows_ranges = True
        self.commits = True
        self.expires_at: str | None = None
        self.url_base: str | None = None
        self.redirect_to: str | None = None
        self.redirect_sockets_to: str | None = None
        self.ticks = 0
        """How many requests for progress are sent before the client's Complete is read."""
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path below the dataset, and range of every request."""
        self.tokens_seen: set[str | None] = set()
        self.parts: dict[int, bytes] = {}
        """What was put to ``parts``, by the number in the query."""
        self.sessions = 0
        self.messages = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{NAME}"

    def count(self, method: str, prefix: str) -> int:
        return sum(m == method and path.startswith(prefix) for m, path, _ in self.asked)

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", f"/{NAME}/{{path:.+}}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    # --- HTTP -----------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        self.asked.append((request.method, path, request.headers.get("range")))
        self.tokens_seen.add(request.headers.get("authorization"))
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Authentication token invalid")
        if self.statuses.get(path):
            return web.Response(status=self.statuses[path].pop(0))
        if path in ("pull", "push") and self.has_websocket:
            if self.redirect_sockets_to:
                return web.Response(status=302, headers={"location": self.redirect_sockets_to})
            if request.headers.get("x-odf-smtp-version") != "1":
                return web.json_response({"message": "Incompatible client version"}, status=400)
            return await self._socket(request, path)
        if self.redirect_to and path.startswith("data/"):
            return web.Response(status=302, headers={"location": f"{self.redirect_to}/{path}"})
        if self.refusals[path] > 0:
            self.refusals[path] -= 1
            return web.Response(status=403, text="Request has expired")
        if path == "parts":
            self.parts[int(request.query["number"])] = await request.read()
            return web.Response()
        if request.method == "PUT":
            data = await request.read()
            assert len(data) == int(request.headers["content-length"])
            if self.break_after.pop(path, None) is not None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            right = Multihash.sha3_256(data).text == path.rpartition("/")[2]
            if right:
                self.files[path] = data
            return web.Response(status=200 if right else 500)
        return await self._file(request, path)

    async def _file(self, request: web.Request, path: str) -> web.StreamResponse:
        data = self.files.get(path)
        if data is None:
            return web.Response(status=404)
        if path in self.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        start, headers, status = 0, {}, 200
        asked = request.headers.get("range")
        if asked and self.knows_ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            headers["content-range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status = 206
        body = data[start:]
        cut = self.break_after.pop(path, None)
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[:cut])
        if cut is not None:
            self.refusals[path] += self.refuses_after_break
            # What was written arrives before the connection is gone.
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write_eof()
        return response

    # --- WebSockets -----------------------------------------------------------------

    async def _socket(self, request: web.Request, path: str) -> web.StreamResponse:
        self.sessions += 1
        socket = web.WebSocketResponse(compress=False, max_msg_size=64 << 20, timeout=0.2)
        await socket.prepare(request)
        try:
            await (self._pull(socket) if path == "pull" else self._push(socket))
        except Cut:
            assert request.transport is not None
            request.transport.abort()
        return socket

    def _count_message(self) -> None:
        self.messages += 1
        if self.messages == self.cut_at:
            raise Cut

    async def _send(self, socket: web.WebSocketResponse, name: str, message: Any) -> None:
        self._count_message()
        changed = self.edit(name, message)
        if isinstance(changed, bytes):
            await socket.send_bytes(changed)
        elif isinstance(changed, tuple):
            await socket.close(code=changed[0], message=changed[1].encode())
            raise Cut
        else:
            await socket.send_str(changed if isinstance(changed, str) else json.dumps(changed))

    async def _receive(self, socket: web.WebSocketResponse) -> Any:
        said = await socket.receive()
        if said.type is not WSMsgType.TEXT:
            raise Cut
        self._count_message()
        return json.loads(said.data)

    async def _pull(self, socket: web.WebSocketResponse) -> None:
        request = await self._receive(socket)
        found = self.interval(request["begin_after"])
        if found is None and not request["force_update_if_diverged"]:
            head, tail = self.head, request["begin_after"]
            refusal = {"Err": {"InvalidInterval": {"head": head, "tail": tail}}}
            await self._send(socket, "plan", refusal)
            return
        chosen = self.interval(None) if found is None else found
        assert chosen is not None
        await self._send(socket, "plan", {"Ok": {"transfer_plan": self._plan(chosen)}})
        await self._receive(socket)
        await self._send(socket, "blocks", {"blocks": batch([self._named(n) for n in chosen])})
        while True:
            wanted = (await self._receive(socket))["object_files"]
            strategies = [
                {
                    "object_file": one,
                    "pull_strategy": "HttpDownload",
                    "download_from": self._url(one),
                }
                for one in wanted
            ]
            await self._send(socket, "urls", {"object_transfer_strategies": strategies})

    async def _push(self, socket: web.WebSocketResponse) -> None:
        request = await self._receive(socket)
        if request["current_head"] != self.head:
            heads = {"actual_head": request["current_head"], "expected_head": self.head}
            await self._send(socket, "accepted", {"Err": {"InvalidHead": heads}})
            return
        await self._send(socket, "accepted", {"Ok": {}})
        sent = await self._receive(socket)
        payload = gzip.decompress(bytes(sent["new_blocks"]["payload"]))
        with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
            new = {e.name: archive.extractfile(e).read() for e in archive}  # type: ignore[union-attr]
        assert len(new) == request["transfer_plan"]["num_blocks"]
        await self._send(socket, "metadata", {"Ok": {}})
        more = True
        while more:
            page = await self._receive(socket)
            more = page["is_truncated"]
            strategies = [self._upload(one) for one in page["object_files"]]
            answer = {"Ok": {"object_transfer_strategies": strategies}}
            await self._send(socket, "urls", answer)
            for _ in range(self.ticks):
                await self._send(socket, "progress", {})
            while (await self._receive(socket))["details"] != "Complete":
                pass
        assert await self._receive(socket) == {}
        if self.commits:
            for name, data in new.items():
                assert Multihash.sha3_256(data).text == name
                self.files[f"blocks/{name}"] = data
            self.files["refs/head"] = list(new)[-1].encode()
        await self._send(socket, "confirmed", {})
        await socket.receive()

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        there = self._path(one) in self.files
        return {
            "object_file": one,
            "push_strategy": "SkipUpload" if there else "HttpUpload",
            "upload_to": None if there else self._url(one),
        }

    def _path(self, one: dict[str, Any]) -> str:
        folder = {"DataSlice": "data", "Checkpoint": "checkpoints"}[one["object_type"]]
        return f"{folder}/{one['physical_hash']}"

    def _url(self, one: dict[str, Any]) -> dict[str, Any]:
        return {
            "url": f"{self.url_base or self.url}/{self._path(one)}",
            "headers": [{"name": "x-odf-smtp-version", "value": "1"}]
            + ([{"name": "authorization", "value": f"Bearer {self.token}"}] if self.token else []),
            "expires_at": self.expires_at,
        }

    # --- The dataset ----------------------------------------------------------------

    @property
    def head(self) -> str | None:
        found = self.files.get("refs/head")
        return found.decode() if found else None

    def interval(self, tail: str | None) -> list[str] | None:
        """Return the names of the blocks behind one, oldest first; ``None`` if it isn't there."""
        found: list[str] = []
        current = self.head
        while current is not None and current != tail:
            found.append(current)
            previous = odf_blocks.parse_odf_block(self.files[f"blocks/{current}"]).prev_hash
            current = previous.text if previous else None
        return found[::-1] if current == tail else None

    def _named(self, name: str) -> tuple[str, bytes]:
        return name, self.files[f"blocks/{name}"]

    def _plan(self, names: list[str]) -> dict[str, int]:
        parsed = [odf_blocks.parse_odf_block(self.files[f"blocks/{name}"]) for name in names]
        return {
            "num_blocks": len(names),
            "num_objects": sum(len(one.objects) for one in parsed),
            "num_records": sum(one.records for one in parsed),
            "bytes_in_raw_blocks": sum(one.size_bytes for one in parsed),
            "bytes_in_raw_objects": sum(r.size_bytes for one in parsed for r in one.objects),
        }


def batch(entries: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Return blocks as a message has them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return {
        "num_blocks": len(entries),
        "media_type": "application/tar+gzip",
        "encoding": "raw",
        "payload": list(packed.getvalue()),
    }

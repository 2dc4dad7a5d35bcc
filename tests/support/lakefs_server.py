"""lakeFS for tests that need a server's obedience: a small one that answers as 1.84.0 does.

It has one repository, ``repo``, with the branch ``main``, and keeps bytes in a
folder. What every real server does is tried with a real one.
"""

from __future__ import annotations

import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.obedient_server import ObedientServer, Reply

API = "/api/v1"
KEY, SECRET = "AKIALAKEFERRYTESTS00", "hunter2-the-secret"


class OurLakeFS(ObedientServer):
    """The server, in a thread of its own, and how it can be told to behave.

    ``next_replies`` are given instead of answers, one each: a status and a body,
    which may be bytes, or ``None`` to close the connection without a word.
    ``address_of`` says where the bytes of a file in ``folder`` are said to be, and
    ``page_size`` is the most that a page has. ``silent`` keeps answers back.

    ``main`` has what was :meth:`put`; what was committed with :meth:`commit` is a ref
    of its own, and can be compared with other such.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.page_size = 1000
        self.address_of: Callable[[Path], str] = lambda file: f"local://{file}"
        self.queries: list[dict[str, str]] = []
        self.ranges: list[str | None] = []
        self.objects: dict[str, Path] = {}
        self.staged: set[str] = set()
        self.commits: dict[str, dict[str, Path]] = {}
        self.refs = {"main", "v1.0", "c0ffee"}
        self.endpoint = self.url

    @property
    def options(self) -> dict[str, str]:
        """The storage options with which its repository is opened."""
        return {
            "lakefs_endpoint": self.endpoint,
            "lakefs_access_key_id": KEY,
            "lakefs_secret_access_key": SECRET,
        }

    def put(self, path: str, data: bytes = b"") -> Path:
        """Stage an object, and return the file that has its bytes."""
        file = self.folder / uuid.uuid4().hex
        file.write_bytes(data)
        self.objects[path] = file
        self.staged.add(path)
        return file

    def commit(self, name: str, objects: Mapping[str, bytes]) -> str:
        """Make a commit of these objects; the same bytes as in another are the same file."""
        known = {
            (path, file.read_bytes()): file
            for committed in self.commits.values()
            for path, file in committed.items()
            if file.exists()
        }
        files = {}
        for path, data in objects.items():
            file = known.get((path, data))
            if file is None:
                file = self.folder / uuid.uuid4().hex
                file.write_bytes(data)
            files[path] = file
        self.commits[name] = files
        self.refs.add(name)
        return name

    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply | None:
        del method, data
        url = urlsplit(target)
        path = url.path.removeprefix(API)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        with self._lock:
            self.asked.append(unquote(path))
            self.queries.append(query)
            self.ranges.append(headers.get("Range"))
            if self.next_replies:
                return self.next_replies.popleft()
            who = "Basic " + b64encode(f"{KEY}:{SECRET}".encode()).decode()
            if headers.get("Authorization") != who:
                return _error(401, "error authenticating request")
            match [unquote(part) for part in path.strip("/").split("/")]:
                case ["repositories", name, *_] if name != "repo":
                    return _error(404, "repository not found")
                case ["repositories", _]:
                    return 200, {"id": "repo", "storage_namespace": "local://repo"}
                case ["repositories", _, "refs", ref, *_] if ref not in self.refs:
                    return _error(404, "not found")
                case ["repositories", _, "refs", ref, "commits"]:
                    found = ref if ref in self.commits else "c0ffee"
                    return 200, {"pagination": {"has_more": False}, "results": [{"id": found}]}
                case ["repositories", _, "refs", ref, "objects", "ls"]:
                    return self._list(self.commits.get(ref, self.objects), query)
                case ["repositories", _, "refs", ref, "objects", *what]:
                    known = self.commits.get(ref, self.objects)
                    return self._object(known, query["path"], what, headers.get("Range"))
                case ["repositories", _, "refs", left, "diff", right]:
                    return self._compare(self.commits[left], self.commits[right], query)
                case ["repositories", _, "branches", "main"]:
                    return 200, {"id": "main", "commit_id": "c0ffee"}
                case ["repositories", _, "branches", name, "diff"]:
                    if name != "main":
                        return _error(404, "branch not found")
                    below = [p for p in self.staged if p.startswith(query.get("prefix", ""))]
                    return 200, {"pagination": {}, "results": [{"path": p} for p in below[:1]]}
            return _error(404, "invalid API endpoint")

    def _list(self, objects: Mapping[str, Path], query: dict[str, str]) -> Reply:
        below = {
            f"{prefix}{path[len(prefix) :].split('/')[0]}/"
            for prefix in ([query["prefix"]] if "delimiter" in query else [])
            for path in objects
            if path.startswith(prefix) and "/" in path[len(prefix) :]
        }
        within = [path for path in objects if not path.startswith(tuple(below))]
        shown, more = self._page([*within, *below], query)
        return 200, {
            "pagination": {"has_more": more},
            "results": [
                self._stats(path, objects[path])
                if path in objects
                else {"path": path, "path_type": "common_prefix"}
                for path in shown
            ],
        }

    def _page(self, names: Iterable[str], query: dict[str, str]) -> tuple[list[str], bool]:
        after, prefix = query.get("after", ""), query.get("prefix", "")
        found = sorted(
            (p for p in names if p.startswith(prefix) and p.encode() > after.encode()),
            key=str.encode,
        )
        shown = found[: min(int(query["amount"]), self.page_size)]
        return shown, len(shown) < len(found)

    def _compare(
        self, before: Mapping[str, Path], after: Mapping[str, Path], query: dict[str, str]
    ) -> Reply:
        kinds = {
            path: "added" if path not in before else "removed" if path not in after else "changed"
            for path in {*before, *after}
            if before.get(path) != after.get(path)
        }
        shown, more = self._page(kinds, query)
        return 200, {
            "pagination": {"has_more": more},
            "results": [{"path": path, "type": kinds[path]} for path in shown],
        }

    def _object(
        self, objects: Mapping[str, Path], path: str, what: list[str], wanted: str | None
    ) -> Reply:
        if path not in objects:
            return _error(404, "not found")
        if what == ["stat"]:
            return 200, self._stats(path, objects[path])
        data = objects[path].read_bytes()
        if wanted is None:
            return 200, data
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        return (206, data[first : last + 1]) if first < len(data) else _error(416, "range")

    def _stats(self, path: str, file: Path) -> dict[str, Any]:
        return {
            "path": path,
            "path_type": "object",
            "physical_address": self.address_of(file),
            # lakeFS goes on listing what its garbage collection has deleted.
            "size_bytes": file.stat().st_size if file.exists() else 0,
            "mtime": 1_700_000_000,
            "checksum": "",
        }


def _error(status: int, message: str) -> Reply:
    return status, {"message": message}

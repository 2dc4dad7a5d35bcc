"""The calls of lakeFS's REST API that reading needs.

The address of lakeFS and the credentials come from storage options, else from the environment, with
lakectl's names or shorter ones:

========================  =========================================  =========================
option                    environment                                or
========================  =========================================  =========================
lakefs_endpoint           LAKECTL_SERVER_ENDPOINT_URL                LAKEFS_ENDPOINT
lakefs_access_key_id      LAKECTL_CREDENTIALS_ACCESS_KEY_ID          LAKEFS_ACCESS_KEY_ID
lakefs_secret_access_key  LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY      LAKEFS_SECRET_ACCESS_KEY
========================  =========================================  =========================

The two halves of a key are taken from one and the same column. No secret is in
any ``repr``, message or field.

What isn't there is :class:`~lakeferry.errors.ObjectNotFound`; its field
``missing`` says whether it is the ``repository``, the ``ref`` or the ``path``.
lakeFS's answer doesn't, so it is asked for the larger thing where that isn't
known to be there.
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    Unauthorized,
)
from lakeferry.storage.lakefs_addresses import physical_uri
from lakeferry.storage.rest_request import TIMEOUT_S, Answer, Rest
from lakeferry.storage.uris import split

API = "/api/v1"
LAKEFS_PAGE = 1000
"""How many objects a page of a listing has: the most that lakeFS gives."""
SETTINGS = ("LAKECTL_SERVER_ENDPOINT_URL", "LAKECTL_CREDENTIALS_ACCESS_KEY_ID and its secret")

_ENDPOINTS = ("LAKECTL_SERVER_ENDPOINT_URL", "LAKEFS_ENDPOINT")
_KEYS = (
    ("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"),
    ("LAKEFS_ACCESS_KEY_ID", "LAKEFS_SECRET_ACCESS_KEY"),
)
_KEY_OPTIONS = ("lakefs_access_key_id", "lakefs_secret_access_key")
# What a branch may be called. Everything else is a tag, a commit or an expression, and has nothing
# uncommitted, except the expression that means a branch with its uncommitted changes.
_BRANCH = re.compile(r"(\w[-\w]*)\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LakeFSAccess:
    """The address of a lakeFS server, and our credentials there."""

    endpoint: str
    key: str | None = None
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def find(
        cls, options: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> LakeFSAccess:
        """Return it from options and environment; raise ``InvalidInput`` if they are incomplete."""
        variables = os.environ if environment is None else environment
        given = {name.lower(): value for name, value in options.items() if value}
        found = [variables[name] for name in _ENDPOINTS if variables.get(name)]
        endpoint = given.get("lakefs_endpoint") or next(iter(found), None)
        if endpoint is None:
            raise InvalidInput(
                "the address of lakeFS isn't set",
                remedy="set LAKECTL_SERVER_ENDPOINT_URL to its address, "
                "or give --storage-option lakefs_endpoint=https://…",
            )
        pairs = [tuple(map(given.get, _KEY_OPTIONS))]
        pairs += [tuple(variables.get(name) or None for name in pair) for pair in _KEYS]
        key, secret = next((pair for pair in pairs if any(pair)), (None, None))
        if (key is None) != (secret is None):
            raise InvalidInput(
                "a key for lakeFS is incomplete",
                remedy="give the access key id and its secret both as options or both as variables",
            )
        return cls(endpoint.strip().rstrip("/").removesuffix(API), key, secret)

    @property
    def authorization(self) -> str | None:
        """The header with the credentials."""
        if self.key is None or self.secret is None:
            return None
        return f"Basic {b64encode(f'{self.key}:{self.secret}'.encode()).decode()}"

    def rest(self, timeout_s: float, pause: Callable[[float], None]) -> Rest:
        """Return the service at this endpoint; each call waits ``timeout_s`` at most."""
        return Rest(
            "lakeFS",
            f"{self.endpoint}{API}",
            self.authorization,
            settings=SETTINGS,
            timeout_s=timeout_s,
            pause=pause,
        )


@dataclass(frozen=True, slots=True)
class LakeFSObject:
    """One object as lakeFS describes it: its whole path, and the address of its bytes."""

    path: str
    address: str
    """The URI of its bytes, in Lakeferry's form if there is one."""
    size_bytes: int
    modified_ms: int


class LakeFSRef:
    """One ref of a repository: a branch, a tag, a commit, or an expression such as ``main~1``.

    A branch includes its uncommitted changes. No request is sent before the first call. Safe to use
    from several threads.
    """

    def __init__(
        self,
        access: LakeFSAccess,
        repository: str,
        ref: str,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name a ref; the address of the server is checked."""
        self.repository = repository
        self.ref = ref
        self._rest = access.rest(timeout_s, pause)
        self._top = f"/repositories/{quote(repository, safe='')}"
        self._there = f"{self._top}/refs/{quote(ref, safe='')}"
        self._is_known = False

    @property
    def uri(self) -> str:
        """The root of the ref as a URI of ours."""
        return str(split(f"lakefs://{self.repository}/{quote(self.ref, safe='')}"))

    def storage_namespace(self) -> str:
        """Return the place of the repository's data, as lakeFS names it."""
        answer = self._rest.ask("GET", self._top)
        if answer.status == 404:
            raise self._not_found("repository")
        return self._text(self._done(answer), "storage_namespace")

    def commit_id(self) -> str:
        """Return the commit that the ref means now; for a branch, its newest commit."""
        answer = self._asked_commits()
        if answer.status == 404:
            raise self._missing_ref()
        commits = self._done(answer).get("results")
        if not isinstance(commits, list) or not commits or not isinstance(commits[0], dict):
            raise self._rest.unavailable("it shows no commit for a ref")
        return self._text(commits[0], "id")

    def page(self, prefix: str, after: str) -> tuple[list[LakeFSObject], bool]:
        """Return the first objects below a prefix that come after a path, and whether more do."""
        results, more = self._page({"prefix": prefix, "after": after})
        return [self._entry(each) for each in results], more

    def folders(self, prefix: str, after: str) -> tuple[list[str], str, bool]:
        """Return the first folders directly below a prefix that come after a path.

        And the last path that was looked at, and whether more come after it.
        """
        results, more = self._page({"prefix": prefix, "after": after, "delimiter": "/"})
        if not all(isinstance(each, dict) and "path" in each for each in results) or (
            more and not results
        ):
            raise self._rest.unavailable("its listing isn't one")
        found = [str(each["path"]) for each in results if each.get("path_type") == "common_prefix"]
        return found, str(results[-1]["path"]) if results else after, more

    def _page(self, asked: Mapping[str, str]) -> tuple[list[Any], bool]:
        answer = self._rest.ask(
            "GET",
            f"{self._there}/objects/ls",
            query={
                **asked,
                "amount": str(LAKEFS_PAGE),
                "user_metadata": "false",
                "presign": "false",
            },
        )
        if answer.status == 404:
            raise self._missing_ref()
        body = self._done(answer)
        results, pagination = body.get("results"), body.get("pagination")
        if not isinstance(results, list) or not isinstance(pagination, dict):
            raise self._rest.unavailable("its listing isn't one")
        return results, bool(pagination.get("has_more"))

    def stat(self, path: str) -> LakeFSObject:
        """Return one object's entry."""
        query = {"path": path, "user_metadata": "false", "presign": "false"}
        answer = self._rest.ask("GET", f"{self._there}/objects/stat", query=query)
        if answer.status in (404, 410):
            raise self._missing(path, answer)
        return self._entry(self._done(answer))

    def content(
        self, path: str, start: int = 0, length: int | None = None, *, limit_bytes: int
    ) -> bytes:
        """Let lakeFS itself send an object, or a part of one."""
        answer = self._rest.fetch(
            f"{self._there}/objects",
            {"path": path, "presign": "false"},
            first=start,
            length=length,
            limit_bytes=limit_bytes,
        )
        if isinstance(answer, bytes):
            return answer
        if answer.status in (404, 410):
            raise self._missing(path, answer)
        self._done(answer)
        raise self._rest.unavailable(f"status {answer.status} for an object")

    def has_uncommitted(self, prefix: str) -> bool:
        """Return whether something below a prefix is staged; that is possible only on a branch."""
        match = _BRANCH.fullmatch(self.ref)
        if match is None:
            return False
        answer = self._rest.ask(
            "GET",
            f"{self._top}/branches/{match[1]}/diff",
            query={"prefix": prefix, "amount": "1"},
        )
        if answer.status == 404:
            # No branch: then it is a tag or a commit, or nothing at all.
            if not self._is_known:
                self.commit_id()
            return False
        return bool(self._done(answer).get("results"))

    def changes(self, since: str, prefix: str, after: str) -> tuple[list[tuple[str, str]], bool]:
        """Return a page of objects that changed since another commit, and if there are more.

        Each is ``added``, ``removed`` or ``changed``, with its whole path.
        """
        answer = self._rest.ask(
            "GET",
            f"{self._top}/refs/{quote(since, safe='')}/diff/{quote(self.ref, safe='')}",
            query={"type": "two_dot", "prefix": prefix, "after": after, "amount": str(LAKEFS_PAGE)},
        )
        if answer.status == 404:
            raise self._missing_ref()
        body = self._done(answer)
        results, pagination = body.get("results"), body.get("pagination")
        if not isinstance(results, list) or not isinstance(pagination, dict):
            raise self._rest.unavailable("its comparison of two commits isn't one")
        found = [(self._text(each, "type"), self._text(each, "path")) for each in results]
        return found, bool(pagination.get("has_more"))

    def _asked_commits(self) -> Answer:
        return self._rest.ask(
            "GET", f"{self._there}/commits", query={"amount": "1", "limit": "true"}
        )

    def _done(self, answer: Answer) -> Mapping[str, Any]:
        if answer.status == 400:
            raise InvalidInput(
                f"lakeFS doesn't understand {self.uri}",
                cause=answer.problem,
                remedy="write lakefs://repository/ref/path; a ref is a branch, a tag or a commit",
                uri=self.uri,
            )
        body = self._rest.body_of(answer)
        self._is_known = True
        return body

    def _missing(self, path: str, answer: Answer) -> LakeferryError:
        """Return the error for a missing object, ref or repository."""
        if not self._is_known and answer.status == 404:
            commits = self._asked_commits()
            if commits.status == 404:
                return self._missing_ref()
            self._is_known = commits.ok
        gone = "its bytes have been deleted" if answer.status == 410 else None
        return self._not_found("path", path, gone)

    def _missing_ref(self) -> LakeferryError:
        # A user who may list objects may still not be allowed to read the repository.
        with suppress(Forbidden, Unauthorized):
            if self._rest.ask("GET", self._top).status == 404:
                return self._not_found("repository")
        return self._not_found("ref")

    def _not_found(
        self, missing: str, path: str | None = None, cause: str | None = None
    ) -> LakeferryError:
        said = {
            "repository": f"lakeFS has no repository {self.repository!r}",
            "ref": f"the repository {self.repository!r} of lakeFS has no ref {self.ref!r}",
            "path": f"no object at {path!r} in {self.uri}",
        }
        return ObjectNotFound(
            said[missing],
            cause=cause,
            missing=missing,
            bucket_missing=missing != "path",
            repository=self.repository,
            ref=self.ref,
            path=path,
            uri=self.uri,
        )

    def _entry(self, said: Any) -> LakeFSObject:
        if not isinstance(said, dict):
            raise self._rest.unavailable("it describes an object by something else")
        size, seconds = said.get("size_bytes"), said.get("mtime")
        if not isinstance(size, int) or not isinstance(seconds, int):
            raise self._rest.unavailable("it describes an object without its size or its time")
        address = physical_uri(self._text(said, "physical_address"))
        return LakeFSObject(self._text(said, "path"), address, size, seconds * 1000)

    def _text(self, said: Mapping[str, Any], name: str) -> str:
        value = said.get(name)
        if not isinstance(value, str) or not value:
            raise self._rest.unavailable(f"its answer lacks {name!r}")
        return value

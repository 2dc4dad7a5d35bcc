"""The calls of lakeFS's REST API that put a file on a branch and commit it.

Tables in lakeFS are only read, never written; this module is for the one small file that makes
lakeFS call our server. A commit includes everything that is staged on its branch, so the caller
checks that first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from lakeferry.errors import CommitStateUnknown, InvalidInput, LakeferryError, ObjectNotFound
from lakeferry.storage.lakefs_api import LakeFSAccess
from lakeferry.storage.rest_request import TIMEOUT_S, Answer


class LakeFSRepository:
    """A repository of lakeFS and its branches. No request is sent before the first call."""

    def __init__(
        self,
        access: LakeFSAccess,
        name: str,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name a repository; the address of the server is checked."""
        self.name = name
        self._rest = access.rest(timeout_s, pause)
        self._top = f"/repositories/{quote(name, safe='')}"

    def default_branch(self) -> str:
        """Return the branch that lakeFS shows first."""
        answer = self._rest.ask("GET", self._top)
        if answer.status == 404:
            raise self._missing(None)
        return self._text(self._done(answer), "default_branch")

    def head(self, branch: str) -> str:
        """Return the id of a branch's newest commit."""
        answer = self._rest.ask("GET", self._branch(branch))
        if answer.status == 404:
            raise self._missing(branch)
        return self._text(self._done(answer), "commit_id")

    def staged(self, branch: str, amount: int) -> list[str]:
        """Return the paths of a few uncommitted changes on a branch."""
        answer = self._rest.ask(
            "GET", f"{self._branch(branch)}/diff", query={"amount": str(amount)}
        )
        if answer.status == 404:
            raise self._missing(branch)
        results = self._done(answer).get("results")
        if not isinstance(results, list):
            raise self._rest.unavailable("what it says is staged isn't a list")
        return [self._text(each, "path") for each in results]

    def upload(self, branch: str, path: str, data: bytes) -> None:
        """Stage an object, replacing an older one of that name."""
        answer = self._rest.ask(
            "POST", f"{self._branch(branch)}/objects", query={"path": path}, body=data
        )
        if answer.status == 404:
            raise self._missing(branch)
        self._done(answer)

    def unstage(self, branch: str, path: str) -> None:
        """Unstage the object of a name."""
        body = {"type": "object", "path": path}
        answer = self._rest.ask("PUT", self._branch(branch), body=body)
        if answer.status != 404:
            self._done(answer)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit what is staged on a branch, and return the commit's id.

        If the answer was lost and the request repeated, lakeFS says that there is
        nothing to commit: then it is the branch's newest commit.
        """
        body = {"message": message, "metadata": dict(metadata)}
        answer = self._rest.ask("POST", f"{self._branch(branch)}/commits", body=body)
        if answer.status == 404:
            raise self._missing(branch)
        if answer.status == 400 and not self.staged(branch, 1):
            head = self._rest.ask(
                "GET", f"{self._top}/refs/{quote(branch, safe='')}/commits", query={"amount": "1"}
            )
            newest: dict[str, Any] = next(iter(self._done(head).get("results") or ()), {})
            if newest.get("message") == message:
                return self._text(newest, "id")
            raise CommitStateUnknown(
                f"lakeFS has nothing left to commit on {branch!r} of {self.name!r}",
                cause="somebody else may have committed it",
                remedy="run the command again",
                repository=self.name,
                branch=branch,
            )
        return self._text(self._done(answer), "id")

    def _branch(self, branch: str) -> str:
        return f"{self._top}/branches/{quote(branch, safe='')}"

    def _done(self, answer: Answer) -> Mapping[str, Any]:
        if answer.status == 400:
            raise InvalidInput(
                f"lakeFS refused what Lakeferry sent for {self.name!r}",
                cause=answer.problem,
                repository=self.name,
            )
        return self._rest.body_of(answer)

    def _missing(self, branch: str | None) -> LakeferryError:
        if branch is not None and self._rest.ask("GET", self._top).status != 404:
            said = f"The repository {self.name!r} of lakeFS has no branch {branch!r}"
        else:
            said = f"lakeFS has no repository {self.name!r}"
        return ObjectNotFound(said, repository=self.name, branch=branch)

    def _text(self, said: Mapping[str, Any], name: str) -> str:
        value = said.get(name) if isinstance(said, dict) else None
        if not isinstance(value, str) or not value:
            raise self._rest.unavailable(f"its answer lacks {name!r}")
        return value

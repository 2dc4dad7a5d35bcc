"""Decides who may do what with which dataset.

===============================  ====================================================
no token, or a bad one           401; also for a dataset that isn't there
a token for something else       404, as if there were no such dataset
may see it, may not write        403
a header that makes no sense     400
===============================  ====================================================

A public dataset is read without a token, and so is any dataset if the server was started with
``--anonymous-read``. A token that is sent has to be valid, even if none is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakeferry.errors import Unauthorized
from lakeferry.transfer.repository.access_tokens import KNOWN_FOR_S, TokenGrant, Tokens
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility
from lakeferry.transfer.wire import handshake

ANONYMOUS = "Anonymous account is restricted"

_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """The status of a refused request, and its text, if any."""

    status: int
    text: str = ""


class DatasetAccess:
    """The rules of one server. Safe to use from several threads."""

    def __init__(
        self,
        repository: Repository,
        tokens: Tokens,
        *,
        anonymous_read: bool = False,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a repository and its tokens; ``ticks`` measures the age of cached answers."""
        self._repository = repository
        self._tokens = tokens
        self._anonymous_read = anonymous_read
        self._ticks = ticks
        self._lock = threading.Lock()
        self._seen: dict[DatasetName, tuple[float, Visibility]] = {}

    def refusal(
        self,
        authorization: Sequence[str],
        name: DatasetName,
        *,
        write: bool,
        folder: DatasetName | None = None,
    ) -> HttpRefusal | None:
        """Return why a request is refused, or ``None`` if it is allowed.

        ``authorization`` has the request's headers of that name. An allowed read doesn't mean
        that the dataset exists. ``folder`` is the folder of a session that has begun: the dataset
        may have been renamed since.
        """
        place = self._repository.folders.folder(name) if folder is None else folder
        grant = self.grant_of(authorization)
        if isinstance(grant, HttpRefusal):
            return grant
        if grant is not None and grant.covers(name):
            return HttpRefusal(403) if write and not grant.may_write else None
        if grant is None and (write or not self._anyone_reads(place)):
            return HttpRefusal(401, ANONYMOUS)
        if not write and self._anyone_reads(place):
            return None
        # Tell that another account's dataset exists only to a client that could read it.
        is_seen = self._anyone_reads(place) and self._exists(place)
        return HttpRefusal(403 if is_seen else 404)

    def token_refusal(self, authorization: Sequence[str]) -> HttpRefusal | None:
        """Return why a request's token is invalid, for any dataset; ``None`` if it is valid."""
        grant = self.grant_of(authorization)
        if isinstance(grant, HttpRefusal):
            return grant
        return HttpRefusal(401, ANONYMOUS) if grant is None else None

    def grant_of(self, authorization: Sequence[str]) -> TokenGrant | HttpRefusal | None:
        """Return what a request's token allows, or why it is refused; ``None`` without one."""
        token = handshake.bearer_token(("authorization", value) for value in authorization)
        if isinstance(token, handshake.HandshakeRefusal):
            return HttpRefusal(token.status, token.body)
        if token is None:
            return None
        try:
            return self._tokens.check(token)
        except Unauthorized as refused:
            return HttpRefusal(401, refused.message)

    def standing(self, headers: handshake.Headers, name: DatasetName) -> handshake.ClientRights:
        """Return what a session's handshake needs to know about a client and a dataset.

        For a client with a bad token every dataset seems to exist, so that the answer reveals
        nothing.
        """
        grant: TokenGrant | None = None
        state = handshake.TokenState.ABSENT
        token = handshake.bearer_token(headers)
        if isinstance(token, str):
            try:
                grant, state = self._tokens.check(token), handshake.TokenState.VALID
            except Unauthorized as refused:
                is_expired = bool(refused.fields.get("expired"))
                state = handshake.TokenState("expired" if is_expired else "invalid")
                return handshake.ClientRights(state, True, may_read=False, may_write=False)
        is_covered = grant is not None and grant.covers(name)
        folder = self._repository.folders.folder(name)
        is_open = not is_covered and self._anyone_reads(folder)
        may_write = grant is not None and is_covered and grant.may_write
        return handshake.ClientRights(
            state,
            dataset_exists=self._exists(folder),
            may_read=is_covered or is_open,
            may_write=may_write,
            anonymous_allowed=is_open,
            may_create=is_covered,
        )

    @property
    def anonymous_read(self) -> bool:
        """Whether every dataset is read without a token."""
        return self._anonymous_read

    def _exists(self, folder: DatasetName | None) -> bool:
        return folder is not None and self._repository.kind(folder) is not None

    def _anyone_reads(self, folder: DatasetName | None) -> bool:
        if self._anonymous_read:
            return True
        return folder is not None and self._visibility(folder) is Visibility.PUBLIC

    def _visibility(self, folder: DatasetName) -> Visibility:
        now = self._ticks()
        with self._lock:
            seen = self._seen.get(folder)
            if seen is not None and now - seen[0] < KNOWN_FOR_S:
                return seen[1]
        found = self._repository.visibility(folder)
        with self._lock:
            self._seen.pop(folder, None)
            self._seen[folder] = (now, found)
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]
        return found

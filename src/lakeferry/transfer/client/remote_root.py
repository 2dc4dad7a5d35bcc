"""The datasets of a server, as a client lists and changes them.

The endpoints are those of :mod:`lakeferry.server.http.dataset_admin`. A change is sent once: after
a lost answer the user finds out what happened, and may repeat the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from lakeferry.errors import InvalidInput, LakeferryError, StorageUnavailable
from lakeferry.storage.rest_request import Answer, Rest
from lakeferry.transfer.client.dataset_urls import parse_url

MOST_LISTED = 1_000_000
_SHOWN = 500


class RemoteRoot(Rest):
    """A server at a URL, asked with a token or without."""

    place_field = "url"
    credential = "token"
    owner = "use a token with the scope write, which covers every dataset that the command names"
    meaningful = frozenset({400, 404, 409, 413, 500})

    def __init__(self, url: str, token: str | None) -> None:
        """Check the URL and the token; nothing is sent."""
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidInput(
                "the token has characters that can't be in a token",
                remedy="copy it again, as 'lakeferry token create' printed it",
            )
        super().__init__(
            "the server",
            str(parse_url(url)),
            f"Bearer {token}" if token else None,
            settings=("the URL", "--token, or LAKEFERRY_TOKEN,"),
        )

    def datasets(self) -> Iterator[object]:
        """Yield the documents of all datasets that the token may see, page by page."""
        after: str | None = None
        count = 0
        while True:
            query = {} if after is None else {"after": after}
            body = self._taken(self.ask("GET", "/", query=query))
            page, after = body.get("datasets"), body.get("next")
            if not isinstance(page, list) or not (after is None or isinstance(after, str)):
                raise self.unavailable("its list of datasets can't be read")
            yield from page
            count += len(page)
            if after is None:
                return
            if not page or count > MOST_LISTED:
                raise self.unavailable("its list of datasets doesn't end")

    def rename(self, name: str, new: str, *, dry_run: bool) -> object:
        """Rename a dataset, and return the server's document."""
        return self._change("PATCH", name, {"name": new}, dry_run=dry_run)

    def set_visibility(self, name: str, visibility: str, *, dry_run: bool) -> object:
        """Set who may read a dataset, and return the server's document."""
        return self._change("PATCH", name, {"visibility": visibility}, dry_run=dry_run)

    def delete(self, name: str, *, force: bool, dry_run: bool) -> object:
        """Delete a dataset, and return the server's document."""
        return self._change("DELETE", name, None, dry_run=dry_run, force=force)

    def _change(self, method: str, name: str, body: object, **flags: bool) -> object:
        query = {flag: "true" for flag, is_set in flags.items() if is_set}
        answer = self.ask(method, f"/{quote(name)}", query=query, body=body, once=True)
        return self._taken(answer)

    def _taken(self, answer: Answer) -> Any:
        if answer.ok:
            return answer.body
        error = answer.body.get("error")
        if not isinstance(error, dict):
            raise self.unavailable(answer.problem)
        remedy = error.get("remedy")
        kind = _kinds().get(str(error.get("code")), StorageUnavailable)
        raise kind(
            str(error.get("message"))[:_SHOWN],
            remedy=remedy[:_SHOWN] if isinstance(remedy, str) else None,
            url=self.root,
        )


def _kinds() -> dict[str, type[LakeferryError]]:
    """Return all classes of errors by their codes."""
    found: dict[str, type[LakeferryError]] = {}
    left = [LakeferryError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        found.setdefault(kind.code, kind)
    return found

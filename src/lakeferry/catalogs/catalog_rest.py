"""A catalog's REST service, called with a bearer token.

:mod:`lakeferry.storage.rest_request` describes limits and errors; a catalog that doesn't
answer is :class:`~lakeferry.errors.CatalogUnavailable`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakeferry.errors import CatalogUnavailable, InvalidInput
from lakeferry.storage import normalise, rest_request
from lakeferry.storage.rest_request import TIMEOUT_S, Answer
from lakeferry.storage.uris import split

__all__ = ["TIMEOUT_S", "Answer", "CatalogRest"]


class CatalogRest(rest_request.Rest):
    """A service at an ``http`` or ``https`` address, asked with a bearer token or without."""

    unavailable_as = CatalogUnavailable
    place_field = "catalog"
    credential = "token"
    owner = "ask the owner of the table or schema for the privilege"

    def __init__(
        self,
        service: str,
        root: str,
        token: str | None,
        *,
        settings: tuple[str, str],
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the address and the token; error texts repeat neither of them."""
        sent = _checked_token(token, settings[1])
        super().__init__(
            service,
            root,
            None if sent is None else f"Bearer {sent}",
            settings=settings,
            timeout_s=timeout_s,
            pause=pause,
        )

    def location(self, text: object) -> str:
        """Return the normalised URI of a place that the server names."""
        if not isinstance(text, str):
            raise self.unavailable("it doesn't say where the table is")
        try:
            return normalise(text) if text.startswith("/") else str(split(text))
        except InvalidInput as unknown:
            raise self.unavailable(
                f"the table is at a place that can't be opened: {unknown}"
            ) from unknown


def _checked_token(token: str | None, setting: str) -> str | None:
    token = (token or "").strip()
    if not token:
        return None
    if not token.isascii() or not token.isprintable():
        raise InvalidInput(
            f"{setting} can't be sent",
            cause="it has characters that can't be in a token",
            remedy=f"set {setting} again: a token has only printable ASCII characters",
        )
    return token

"""Asks Unity Catalog who we are: its API for users (SCIM), which answers in a format of its own."""

from __future__ import annotations

from lakeferry.catalogs.catalog_rest import Answer
from lakeferry.catalogs.unity_address import UNITY_TOKEN, UNITY_URL
from lakeferry.catalogs.unity_delta_rest import DeltaRest

_USERS = "/api/1.0/unity-control/scim2"
_NO_USERS = frozenset({400, 404, 405, 406, 501})


class _UsersRest(DeltaRest):
    # The server answers 406 or 500 to clients that accept other formats.
    accepts = "application/scim+json, application/json"
    meaningful = DeltaRest.meaningful | _NO_USERS

    def _understood(self, status: int, content: bytes) -> Answer:
        return Answer(status, {}) if status in _NO_USERS else super()._understood(status, content)


def principal(server: str, token: str | None) -> str | None:
    """Return the name of the user whose token we have.

    ``None`` for a server that has no users, or that checks no tokens. ``server`` is its address
    without the path of an API.
    """
    if not token:
        return None
    settings = (UNITY_URL, UNITY_TOKEN)
    users = _UsersRest("Unity Catalog", f"{server}{_USERS}", token, settings=settings)
    answer = users.ask("GET", "/Me")
    # Without authorization the answer has status 500 and says 400 in its content.
    if answer.status in _NO_USERS or answer.body.get("status") == "400":
        return None
    name = answer.body.get("userName")
    if not answer.ok or not isinstance(name, str):
        raise users.unavailable(answer.problem)
    return name

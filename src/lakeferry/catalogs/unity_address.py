"""Where Unity Catalog is, and who we are: what the clients of both of its APIs have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lakeferry.catalogs.catalog import VARIABLES
from lakeferry.errors import InvalidInput

UNITY_URL = VARIABLES["unity"]
UNITY_TOKEN = "UC_TOKEN"
_API = "/api/2.1/unity-catalog"


def unity_root(url: str) -> str:
    """Return the address of the API for a server's address, with or without the API's path."""
    root = url.strip().rstrip("/").removesuffix(_API)
    return f"{root}{_API}" if root else ""


def unity_from(environment: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Return the server's address and our token."""
    variables = os.environ if environment is None else environment
    url = variables.get(UNITY_URL)
    if not url:
        raise InvalidInput(
            f"Unity Catalog can't be used, because {UNITY_URL} isn't set",
            remedy=f"set {UNITY_URL} to the server's address, and {UNITY_TOKEN}",
        )
    return url, variables.get(UNITY_TOKEN)

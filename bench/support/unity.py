"""Unity Catalog for benchmarks: our server for tests, or the real one at ``LAKEFERRY_UC_URL``."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.unity_server import UnityServer

REAL = "LAKEFERRY_UC_URL"


def is_real() -> bool:
    """Return whether the environment names a real server."""
    return bool(os.environ.get(REAL))


@contextmanager
def unity() -> Iterator[UnityServer]:
    """Give a server with a new schema, which this process and its children find by ``UC_URL``."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.support.unity_server import unity_server

    before = {name: os.environ.pop(name, None) for name in ("UC_URL", "UC_TOKEN")}
    try:
        with unity_server() as server:
            os.environ.update(server.environment())
            yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count what this process asks of catalogs, by method; retries aren't counted.

    Calls of :mod:`tests.support` aren't counted either: they don't use our client.
    """
    from lakeferry.catalogs.catalog_rest import CatalogRest

    found: Counter[str] = Counter()
    lock = threading.Lock()
    ask = CatalogRest.ask

    def noted(self: CatalogRest, method: str, path: str, **options: Any) -> Any:
        with lock:
            found[method] += 1
        return ask(self, method, path, **options)

    CatalogRest.ask = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        CatalogRest.ask = ask  # type: ignore[method-assign]

"""Makes a session of Spark Connect follow redirects, until it is uninstalled.

A Connect session sends its requests through one object, its stub. ``add_connect_client`` puts
another one in its place, which changes the plans of the requests that execute or analyse
something (:mod:`lakeferry.spark.connect_plans`) and passes everything else on. Only this session
has it: PySpark's classes aren't patched. An installation is one assignment, so it happens or it
doesn't.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException

from lakeferry.spark.connect_client import FOLLOW_ON_SERVER, ConnectClient
from lakeferry.spark.connect_plans import PlanFollower
from lakeferry.spark.connect_server import is_unfollowed

_FOLLOWED = ("ExecutePlan", "AnalyzePlan")


class FollowingStub:
    """The stub of a session that follows redirects."""

    def __init__(self, session: Any, stub: Any, storage_options: Mapping[str, str]) -> None:
        self.stub = stub
        self.storage_options = storage_options
        self.told_server = False
        self._session = session
        self._views: dict[str, set[str]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a method of the session's own stub, or one that follows redirects first."""
        method = getattr(self.stub, name)
        if name not in _FOLLOWED:
            return method

        def send(request: Any, *more: Any, **named: Any) -> Any:
            return method(self._followed(request), *more, **named)

        return send

    def client(self) -> ConnectClient:
        """Return the client for one request."""
        return ConnectClient(self._session, self.storage_options, self._views)

    def _followed(self, request: Any) -> Any:
        """Return a request that names every table at its new place."""
        if is_unfollowed():
            return request
        follower = PlanFollower(self.client())
        changed = type(request)()
        # The session may send its own request again after a failure.
        changed.CopyFrom(request)
        follower.follow(changed)
        for view in follower.new_views:
            self._views[view] = set(follower.client.read)
        return changed


def add_connect_client(session: Any, storage_options: Mapping[str, str]) -> None:
    """Make a session follow redirects; if it does already, replace its options."""
    there = _installed(session)
    if there is not None:
        there.storage_options = dict(storage_options)
        return
    new = FollowingStub(session, session.client._stub, dict(storage_options))
    # A value that the user has set is kept. Where it can't be set, as on serverless compute, views
    # and functions over tables that moved are refused.
    with contextlib.suppress(PySparkException):
        if session.conf.get(FOLLOW_ON_SERVER, None) is None:
            session.conf.set(FOLLOW_ON_SERVER, "true")
            new.told_server = True
    session.client._stub = new


def remove_connect_client(session: Any) -> None:
    """Restore a session."""
    there = _installed(session)
    if there is None:
        return
    session.client._stub = there.stub
    if there.told_server and session.conf.get(FOLLOW_ON_SERVER, None) == "true":
        session.conf.unset(FOLLOW_ON_SERVER)


def connect_client(session: Any, storage_options: Mapping[str, str] | None) -> ConnectClient:
    """Return a client for one call, with the session's options unless others are given."""
    there = _installed(session)
    if storage_options is None and there is not None:
        return there.client()
    return ConnectClient(session, storage_options or {})


def _installed(session: Any) -> FollowingStub | None:
    stub = session.client._stub
    return stub if isinstance(stub, FollowingStub) else None

"""Which Spark Connect server the engine uses, and what it refuses before it calls one."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pyspark.errors import PySparkRuntimeError

from lakeferry.engines.spark import connect_engine
from lakeferry.engines.spark.connect_engine import ConnectJobs, open_remote_session
from lakeferry.engines.spark.spark_versions import SPARK_REMOTE
from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.version import LAKEFERRY_VERSION
from tests.support.servers import free_port


@pytest.fixture
def listener() -> Iterator[int]:
    """A port at which somebody listens, who isn't asked anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_without_a_server_the_engine_has_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPARK_REMOTE, raising=False)
    assert open_remote_session() is None


@pytest.mark.parametrize("url", ["http://localhost:15002", "sc://", "localhost:15002"])
def test_a_url_of_another_kind_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_REMOTE, f"{url};token=secret")
    with pytest.raises(InvalidInput, match="isn't the URL") as refused:
        open_remote_session()
    assert "secret" not in str(refused.value)


def test_a_server_that_is_away_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_REMOTE, f"sc://127.0.0.1:{free_port()}/;token=secret")
    with pytest.raises(StorageUnavailable, match="no Spark Connect server answers") as refused:
        open_remote_session()
    assert "secret" not in str(refused.value)


def test_without_the_client_s_packages_it_says_what_to_install(
    listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARK_REMOTE, f"sc://127.0.0.1:{listener}")
    # Without a file of the program, as in a worker of pytest-xdist, PySpark ends the process.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    with pytest.raises(InvalidInput, match="lacks a package") as refused:
        open_remote_session()
    assert refused.value.remedy == "pip install 'pyspark[connect]'"


class Session:
    """A session of Spark Connect whose executors have Lakeferry."""

    __module__ = "pyspark.sql.connect.session"
    default: ClassVar[Session | None] = None

    def __init__(self) -> None:
        self.is_stopped = False

    @classmethod
    def active(cls) -> Session:
        """Return the session that any thread finds."""
        if cls.default is None:
            raise PySparkRuntimeError("there is none", "NO_ACTIVE_OR_DEFAULT_SESSION", {})
        return cls.default

    def range(self, _: int) -> Any:
        """Return a data frame that gives one row for the check of the executors."""
        row = {"missing": "", "version": LAKEFERRY_VERSION}
        frame = SimpleNamespace(collect=lambda: [row])
        return SimpleNamespace(mapInArrow=lambda *_: frame)

    def stop(self) -> None:
        """End the session."""
        self.is_stopped = True


class Sessions:
    """PySpark's own class, in a thread in which no session is active."""

    def __init__(self) -> None:
        self.builder = self

    def getActiveSession(self) -> None:  # noqa: N802 - PySpark's name
        """Return nothing."""

    def remote(self, _: str) -> Sessions:
        """Return the builder."""
        return self

    def create(self) -> Session:
        """Return a new session, which is the default if there is none."""
        made = Session()
        Session.default = Session.default or made
        return made

    def getOrCreate(self) -> Session:  # noqa: N802 - PySpark's name
        """Return the default session, or a new one."""
        return Session.default or self.create()


@pytest.fixture
def other_thread(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark, as a thread sees it in which no session is active."""
    monkeypatch.setenv(SPARK_REMOTE, f"sc://127.0.0.1:{listener}")
    monkeypatch.setattr(Session, "default", None)
    module = SimpleNamespace(SparkSession=Session)
    monkeypatch.setitem(sys.modules, Session.__module__, module)
    monkeypatch.setattr(connect_engine, "SparkSession", Sessions())


@pytest.mark.usefixtures("other_thread")
def test_the_user_s_session_of_another_thread_is_used_and_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs: Any = Session()
    monkeypatch.setattr(Session, "default", theirs)
    opened: Any = open_remote_session()
    assert opened.spark is theirs
    opened.close()
    assert not theirs.is_stopped


@pytest.mark.usefixtures("other_thread")
def test_an_engine_that_ends_leaves_the_others_their_sessions() -> None:
    first: Any = open_remote_session()
    second: Any = open_remote_session()
    first.close()
    assert not second.spark.is_stopped
    last = second.spark
    second.close()
    assert last.is_stopped


def test_progress_that_comes_after_the_end_of_a_group_is_no_error() -> None:
    handlers: list[Any] = []
    nothing = SimpleNamespace(
        addTag=lambda _: None,
        removeTag=lambda _: None,
        registerProgressHandler=handlers.append,
        removeProgressHandler=lambda _: None,
    )
    jobs = ConnectJobs(nothing)
    end = jobs.begin("group", "what")
    (note,) = handlers
    stage = SimpleNamespace(stage_id=1, num_completed_tasks=2)
    note([stage], 0, 0, False)
    assert jobs.tasks_done("group") == 2
    end()
    note([stage], 0, 0, True)
    assert jobs.tasks_done("group") == 0

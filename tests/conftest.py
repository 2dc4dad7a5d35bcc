"""Fixtures that every test may use, and how tests are shared among workers."""

from __future__ import annotations

import gc
import os
import shlex
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support import components, java, servers, shares
from tests.support.servers import LakeFSServer, PostgreSQLServer, S3Bucket, S3Server
from tests.support.shares import TAKEN, Share
from tests.support.unity_server import UnityServer, unity_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In CI the same examples every time: a change is judged by what it changes.
# Everywhere, a failure prints what replays it.
settings.register_profile("dev", print_blob=True, deadline=None)
settings.register_profile("ci", print_blob=True, deadline=None, derandomize=True)
settings.register_profile("soak", print_blob=True, deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if components.in_ci() else "dev"))

# Where Python is told to keep no bytecode, every program that a test starts would compile
# all that it imports, which takes longer than most of what it does then.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(components.cache_folder() / "bytecode"))
# For every JVM that a test starts, or has started: drivers, executors, a cluster's daemons.
os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(java.OPTIONS))

# What a test starts, by the fixture that starts it: its marker, and the group
# that xdist keeps on one worker, so that there is one lakeFS. Of JVMs see `jvm_of`.
STARTS = {
    "versitygw": ("versitygw", None),
    "lakefs": ("lakefs", "lakefs"),
    "lakefs_on_s3": ("lakefs", "lakefs"),
    "postgresql": ("postgresql", "postgresql"),
    "spark": ("spark", None),
}


def jvm_of(item: pytest.Item) -> str:
    """Return the group of a test that uses the shared Spark: one of two, by its module.

    Each is one JVM on one worker. There are two, each with about half of the work, because one
    worker with all of it needs longer than two others with everything else.
    """
    first = item.nodeid.startswith("tests/golden/") or item.nodeid < "tests/compat/test_spark"
    return "spark" if first else "spark too"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that repeats a run, or takes everything."""
    parser.addoption(
        "--share",
        metavar="K/N",
        help="which share of the exhaustive suites to run, or `all` of it (default: the one "
        f"after the last run's, of {shares.SHARES}; or ${shares.VARIABLE})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose this run's share. Workers take the one that was chosen for the run."""
    given = getattr(config, "workerinput", {}).get("share") or config.getoption("share", None)
    try:
        config.stash[TAKEN] = shares.chosen(given, components.cache_folder())
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist which share it is."""
    node.workerinput["share"] = str(node.config.stash[TAKEN])


def pytest_report_header(config: pytest.Config) -> str:
    """Say which share it is."""
    share = config.stash[TAKEN]
    if share.is_whole:
        return "exhaustive suites: all of them"
    return f"exhaustive suites: share {share}, which --share {share} repeats"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with a failure which share it was in, if another one might not have shown it."""
    report = yield
    if report.failed and {"share", "seeds", "damages"} & set(getattr(item, "fixturenames", ())):
        told = f"It was in share {item.config.stash[TAKEN]}. To replay it:\n"
        report.sections.append(("share", f"{told}  {replaying(item)}"))
    return report


def replaying(item: pytest.Item) -> str:
    """Return the command that runs a test with the same share."""
    return f"pytest -n 0 --share {item.config.stash[TAKEN]} {shlex.quote(item.nodeid)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among modules and tests: they stay, and that would take as long again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they start, and keep what is costly on one worker."""
    for item in items:
        started = [STARTS[name] for name in STARTS if name in getattr(item, "fixturenames", ())]
        for marker in {marker for marker, _ in started}:
            item.add_marker(marker)
        groups = [group for _, group in started if group]
        if item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            groups = [jvm_of(item)]
        if groups:
            item.add_marker(pytest.mark.xdist_group(max(groups)))


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> Share:
    """The share of the exhaustive suites that this run takes."""
    return pytestconfig.stash[TAKEN]


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    binary = components.require("versitygw")
    with servers.versitygw(binary, tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
def s3_bucket(versitygw: S3Server) -> S3Bucket:
    """A new, empty bucket."""
    return versitygw.create_bucket(f"bucket-{uuid.uuid4().hex[:16]}")


@pytest.fixture(scope="session")
def lakefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeFSServer]:
    """A real lakeFS with its blocks on local disk."""
    binary = components.require("lakefs")
    with servers.lakefs_quickstart(binary, tmp_path_factory.mktemp("lakefs")) as server:
        yield server


@pytest.fixture(scope="session")
def lakefs_on_s3(
    versitygw: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LakeFSServer]:
    """A real lakeFS with its blocks on the S3 server, where addresses can be signed."""
    binary = components.require("lakefs")
    bucket = versitygw.create_bucket(f"lakefs-{uuid.uuid4().hex[:16]}")
    folder = tmp_path_factory.mktemp("lakefs-on-s3")
    with servers.lakefs_on_s3(binary, folder, bucket) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """A real PostgreSQL."""
    programs = components.require("postgresql")
    with servers.postgresql(programs) as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: PostgreSQLServer) -> str:
    """The URL of a new, empty database."""
    name = f"database_{uuid.uuid4().hex[:16]}"
    postgresql.execute("postgres", f"CREATE DATABASE {name}")
    return postgresql.url(name)


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    """Unity Catalog with a new schema: ours, or the real one that LAKEFERRY_UC_URL names."""
    with unity_server() as server:
        yield server


@pytest.fixture
def unity_here(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> UnityServer:
    """The same, named in the environment of this process."""
    unity.name_in(monkeypatch)
    return unity


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with Delta Lake, one session for all tests; for S3 use ``spark_s3``.

    ``LAKEFERRY_UC_SPARK_JARS`` names a folder with other jars, for tests with a real Unity Catalog.
    """
    given = os.environ.get("LAKEFERRY_UC_SPARK_JARS")
    jars = Path(given) if given else components.require("spark-jars")
    from tests.support.spark import session

    running = session(
        jars,
        tmp_path_factory.mktemp("spark"),
        settings={"spark.driver.memory": java.LASTING_MEMORY},
        java_options=java.LASTING,
    )
    yield running
    running.stop()


@pytest.fixture
def spark_s3(spark: SparkSession, versitygw: S3Server) -> SparkSession:
    """The same session, with ``s3a://`` and ``s3://`` leading to the S3 server."""
    from tests.support.spark import use_s3

    use_s3(spark, versitygw)
    return spark

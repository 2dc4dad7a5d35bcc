from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakeferry.engine import ReplayPlan, choose
from lakeferry.engines import engine_choice, open_engine
from lakeferry.engines.engine_choice import Engines, opening
from lakeferry.errors import InvalidInput, PackageMissing
from lakeferry.storage import open_store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, Delete, History

GIB = 1024**3


@pytest.mark.parametrize(
    ("name", "objects", "size_bytes", "chosen"),
    [
        ("auto", 0, 0, "local"),
        ("auto", 999, GIB - 1, "local"),
        ("auto", 1_000, 0, "spark"),
        ("auto", 1, GIB, "spark"),
        ("local", 10**9, 10**15, "local"),
        ("spark", 0, 0, "spark"),
    ],
)
def test_auto_is_spark_unless_the_job_is_small(
    name: str, objects: int, size_bytes: int, chosen: str
) -> None:
    assert choose(name, objects, size_bytes) == chosen


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no engine called 'flink'"):
        choose("flink", 0, 0)


def test_a_spark_that_lacks_a_package_says_how_to_get_it() -> None:
    errors = pytest.importorskip("pyspark.errors")
    from lakeferry.engines.spark.spark_errors import our_errors

    missing = {"package_name": "PyArrow", "minimum_version": "15.0.0"}
    with pytest.raises(InvalidInput, match="lacks a package") as refused, our_errors():
        raise errors.PySparkImportError(
            errorClass="PACKAGE_NOT_INSTALLED", messageParameters=missing
        )
    assert "--engine local" in (refused.value.remedy or "")


def test_a_package_that_executors_lack_is_named() -> None:
    errors = pytest.importorskip("pyspark.errors")
    from lakeferry.engines.spark.spark_errors import our_errors

    told = 'Job aborted: Traceback (most recent call last):\n  File "worker.py"\n'
    with pytest.raises(PackageMissing, match="executors lack") as failed, our_errors():
        raise errors.PySparkException(f"{told}ModuleNotFoundError: No module named 'obstore'\n\n")
    assert failed.value.fields == {"package": "obstore"}
    assert "--archives" in (failed.value.remedy or "")


def test_without_spark_its_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith("lakeferry.engines.spark.spark_engine")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(InvalidInput, match="Spark isn't installed") as raised:
        open_engine("spark")
    assert "lakeferry[spark]" in str(raised.value.remedy)


def test_the_local_engine_gives_the_version_with_its_files(tmp_path: Path) -> None:
    store = History().then(Append(3), Checkpoint(), Delete(1)).write(open_store(str(tmp_path)))
    log = DeltaLog(store)
    observed: list[tuple[str, int, int]] = []
    with open_engine("local") as engine:
        plan = ReplayPlan(store.config, log.segment())
        with engine.replay(plan, lambda *event: observed.append(event)) as replayed:
            paths = [path for batch in replayed.files() for path in batch["path"].to_pylist()]
            gone = [path for batch in replayed.tombstones() for path in batch["path"].to_pylist()]
    snapshot = log.snapshot()
    assert sorted(paths) == sorted(snapshot.files["path"].to_pylist())
    assert sorted(gone) == sorted(snapshot.tombstones["path"].to_pylist())
    assert (replayed.totals.num_files, replayed.totals.num_tombstones) == (2, 1)
    assert replayed.totals.size_bytes == snapshot.size_bytes
    assert replayed.small.protocol == snapshot.protocol
    assert replayed.small.num_files == 0
    size = log.segment().size_bytes
    assert observed[0][1:] == (0, size)
    assert observed[-1][1:] == (size, size)


def test_engines_are_opened_with_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[ByteRate | None] = []
    opened = open_engine("local")

    def opens(_name: str, rate: ByteRate | None = None) -> object:
        rates.append(rate)
        return opened

    monkeypatch.setattr(engine_choice, "open_engine", opens)
    rate = ByteRate(5)
    for given in (rate, None):
        with Engines("local", rate=given) as engines:
            engines.choose(1, 1)
    assert rates == [rate, None]


def test_engines_that_are_open_get_no_other_rate() -> None:
    with Engines("local") as engines:
        with opening(engines, lambda _: None) as found:
            assert found is engines
        with pytest.raises(InvalidInput, match="another rate"):
            opening(engines, lambda _: None, ByteRate(5))

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.cli import doctor
from lakeferry.engines.spark import spark_jars, spark_versions
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SPARK_LINES, SparkLine
from lakeferry.errors import HashMismatch, InvalidInput
from tests.unit.cli.program import run


def installed(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.touch(mode=0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def checks(**environment: str) -> dict[str, doctor.MachineCheck]:
    return {check.name: check for check in doctor._look(environment)}


def test_java_is_known_by_its_own_installation(tmp_path: Path) -> None:
    new, old = installed(tmp_path / "new", "21.0.2"), installed(tmp_path / "old", "1.8.0_392")
    home = str(tmp_path)
    assert checks(HOME=home, JAVA_HOME=str(new))["java"].ok
    assert not checks(HOME=home, JAVA_HOME=str(old))["java"].ok
    assert checks(HOME=home, PATH=str(new / "bin"))["java"].ok
    assert checks(HOME=home, PATH="/nowhere")["java"].detail == "not found"


def test_jars_are_found_in_the_cache(tmp_path: Path) -> None:
    assert not checks(LAKEFERRY_CACHE=str(tmp_path))["spark-jars"].ok
    missing = checks(LAKEFERRY_CACHE=str(tmp_path))["spark-jars"]
    assert "lakeferry setup spark" in (missing.remedy or "")
    assert "spark.jars.packages=io.delta:" in (missing.remedy or "")
    spark_jars.jars_folder({"LAKEFERRY_CACHE": str(tmp_path)}).mkdir()
    there = checks(LAKEFERRY_CACHE=str(tmp_path))["spark-jars"]
    assert there.ok
    # Another Spark may want them all the same.
    assert "spark.jars.packages=io.delta:" in there.detail


def test_the_connector_for_managed_tables_is_found_where_spark_looks(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "LAKEFERRY_CACHE": str(tmp_path / "cache")}
    missing = checks(**home)["unity-spark"]
    assert not missing.ok
    assert "io.unitycatalog.spark.UCSingleCatalog" in (missing.remedy or "")
    for folder in (tmp_path / "spark" / "jars", tmp_path / ".ivy2.5.2" / "jars"):
        folder.mkdir(parents=True)
        (folder / "io.unitycatalog_unitycatalog-client-0.7.0.jar").touch()
        assert not checks(**home, SPARK_HOME=str(tmp_path / "spark"))["unity-spark"].ok
        jar = folder / "io.unitycatalog_unitycatalog-spark_4.2_2.13-0.7.0.jar"
        jar.touch()
        found = checks(**home, SPARK_HOME=str(tmp_path / "spark"))["unity-spark"]
        assert found.ok
        assert str(jar) in found.detail
        jar.unlink()


def test_what_is_right_needs_no_remedy() -> None:
    assert [check.name for check in checks().values() if check.ok and check.remedy] == []


def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    variables = {"LAKEFERRY_CACHE": str(tmp_path / "cache")}
    planned = run("setup", "spark", "--dry-run", "--json", home=tmp_path, variables=variables)
    folder = spark_jars.jars_folder(variables)
    assert planned.document["plan"] == [{"op": "fetch_jars", "folder": str(folder)}]
    assert not folder.exists()
    folder.mkdir(parents=True)
    done = run("setup", "spark", "--json", home=tmp_path, variables=variables)
    line = spark_jars.jars_line()
    versions = {"pyspark": line.pyspark, "delta_spark": line.delta}
    assert done.document == {"jars": str(folder), **versions, "changed": False}


def test_jars_that_no_mirror_has_leave_nothing_behind(tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact].jar"/></filesystem></resolvers>'
        "</ivysettings>"
    )
    variables = {"LAKEFERRY_CACHE": str(tmp_path / "cache")}
    words = ("setup", "spark", "--ivy-settings", settings, "--json")
    refused = run(*words, home=tmp_path, variables=variables)
    assert (refused.code, refused.error["code"]) == (1, "storage_unavailable")
    assert "--ivy-settings" in refused.error["remedy"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_jars_with_other_digests_are_refused(tmp_path: Path) -> None:
    (tmp_path / "delta-spark.jar").write_bytes(b"something else")
    with pytest.raises(HashMismatch):
        spark_jars.check_jars(spark_jars.lock_file(NEWEST_WITH_DELTA), tmp_path)


@pytest.mark.parametrize("line", [each for each in SPARK_LINES if each.packages])
def test_each_line_of_spark_has_its_own_jars(
    line: SparkLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "installed_pyspark", lambda: line.pyspark)
    monkeypatch.setattr(spark_versions, "installed_version", lambda _: line.delta)
    found = checks(LAKEFERRY_CACHE=str(tmp_path))
    assert found["pyspark"].ok
    assert found["delta-spark"].ok
    assert f"spark.jars.packages={line.packages}" in (found["spark-jars"].remedy or "")
    (locked,) = [
        jar for jar in spark_jars.lock_file(line).read_text().split() if "delta-spark" in jar
    ]
    assert line.packages is not None
    assert locked == "-".join(line.packages.split(":")[1:]) + ".jar"
    names = {spark_jars.jars_folder(line=each) for each in SPARK_LINES if each.packages}
    assert len(names) == 4


@pytest.mark.parametrize("line", [each for each in SPARK_LINES if each.packages])
def test_delta_spark_is_added_to_the_spark_that_is_there(
    line: SparkLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra would replace it by the newest."""
    monkeypatch.setattr(spark_versions, "installed_pyspark", lambda: line.pyspark)
    monkeypatch.setattr(spark_versions, "installed_version", lambda _: None)
    missing = checks(LAKEFERRY_CACHE=str(tmp_path))["delta-spark"]
    assert (missing.ok, missing.detail) == (False, "not installed")
    assert (missing.remedy or "").endswith(f"pip install delta-spark=={line.delta}")
    monkeypatch.setattr(spark_versions, "installed_pyspark", lambda: None)
    missing = checks(LAKEFERRY_CACHE=str(tmp_path))["delta-spark"]
    assert (missing.remedy or "").endswith("pip install 'lakeferry[spark]'")


@pytest.mark.parametrize(
    ("version", "instead"), [("4.1.4", "pyspark==4.1.1"), ("4.3.0", "pyspark==4.2.0")]
)
def test_a_spark_that_delta_lake_fails_with_is_named(
    version: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "installed_pyspark", lambda: version)
    found = checks(LAKEFERRY_CACHE=str(tmp_path))
    for name in ("pyspark", "spark-jars"):
        assert not found[name].ok
        assert version in found[name].detail
        assert instead in (found[name].remedy or "")
    with pytest.raises(InvalidInput, match="Delta Lake doesn't work"):
        spark_jars.fetch({"LAKEFERRY_CACHE": str(tmp_path)})


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "installed_pyspark", lambda: "3.4.1")
    assert "3.4.1" in checks()["pyspark"].detail


def test_settings_that_cannot_work_are_found(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert not checks(HOME=home, AWS_SECRET_ACCESS_KEY="hunter2")["aws"].ok
    assert not checks(HOME=home, AWS_ENDPOINT_URL="localhost:9000")["aws"].ok
    found = checks(HOME=home, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="hunter2")["aws"]
    assert found.ok
    assert "hunter2" not in found.detail
    assert not checks(HOME=home, LAKEFERRY_ENGINE="flink")["configuration"].ok

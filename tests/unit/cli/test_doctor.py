from __future__ import annotations

from pathlib import Path

from lakeferry.cli import doctor


def installed(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.touch(mode=0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def checks(**environment: str) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.look(environment)}


def test_java_is_known_by_its_own_installation(tmp_path: Path) -> None:
    new, old = installed(tmp_path / "new", "21.0.2"), installed(tmp_path / "old", "1.8.0_392")
    home = str(tmp_path)
    assert checks(HOME=home, JAVA_HOME=str(new))["java"].ok
    assert not checks(HOME=home, JAVA_HOME=str(old))["java"].ok
    assert checks(HOME=home, PATH=str(new / "bin"))["java"].ok
    assert checks(HOME=home, PATH="/nowhere")["java"].detail == "not found"


def test_jars_are_found_in_the_cache(tmp_path: Path) -> None:
    assert not checks(LAKEFERRY_CACHE=str(tmp_path))["spark-jars"].ok
    (tmp_path / "spark-jars-1").mkdir()
    (tmp_path / "spark-jars-1" / f"delta-spark_4.2_2.13-{doctor.DELTA_SPARK}.jar").touch()
    assert checks(LAKEFERRY_CACHE=str(tmp_path))["spark-jars"].ok


def test_settings_that_cannot_work_are_found(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert not checks(HOME=home, AWS_SECRET_ACCESS_KEY="hunter2")["aws"].ok
    assert not checks(HOME=home, AWS_ENDPOINT_URL="localhost:9000")["aws"].ok
    found = checks(HOME=home, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="hunter2")["aws"]
    assert found.ok
    assert "hunter2" not in found.detail
    assert not checks(HOME=home, LAKEFERRY_ENGINE="flink")["configuration"].ok

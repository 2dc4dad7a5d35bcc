from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry import config
from lakeferry.errors import InvalidInput


def load(
    folder: Path,
    *,
    user: str = "",
    project: str = "",
    flags: dict[str, str] | None = None,
    **environment: str,
) -> config.Config:
    home = folder / "home" / ".config" / "lakeferry"
    home.mkdir(parents=True, exist_ok=True)
    (home / "lakeferry.toml").write_text(user)
    (folder / "lakeferry.toml").write_text(project)
    variables = {"HOME": str(folder / "home"), **environment}
    return config.load(storage_options=flags, environment=variables, working_folder=folder)


def test_without_any_file_everything_has_its_default(tmp_path: Path) -> None:
    settings = config.load(environment={"HOME": str(tmp_path)}, working_folder=tmp_path)
    assert (settings.engine, settings.files) == ("auto", ())
    assert settings.storage_options("s3://bucket/table") == {}


def test_the_project_beats_the_user_whichever_way_they_spell_it(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        user='[storage_options]\nregion = "a"\ntimeout = "9s"\n',
        project='[storage_options]\naws_default_region = "b"\n',
    )
    options = settings.storage_options("s3://bucket/table")
    assert options == {"aws_default_region": "b", "timeout": "9s"}


def test_the_environment_beats_the_files_and_a_flag_beats_both(tmp_path: Path) -> None:
    project = '[storage_options]\naws_region = "file"\naws_endpoint = "http://file"\n'
    settings = load(tmp_path, project=project, AWS_REGION="environment")
    assert settings.storage_options("s3://b/t") == {"aws_endpoint": "http://file"}
    settings = load(
        tmp_path, project=project, flags={"endpoint_url": "http://flag"}, AWS_REGION="environment"
    )
    assert settings.storage_options("s3://b/t") == {"endpoint_url": "http://flag"}


def test_credentials_are_never_joined_from_two_places(tmp_path: Path) -> None:
    key = '[storage_options]\naws_access_key_id = "k"\naws_secret_access_key = "s"\n'
    assert load(tmp_path, user=key, AWS_PROFILE="p").storage_options("s3://b/t") == {}
    settings = load(tmp_path, user=key, flags={"access_key_id": "other"})
    assert settings.storage_options("s3://b/t") == {"access_key_id": "other"}


def test_options_may_be_for_one_place_only(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        project='[storage_options]\nregion = "a"\n[storage_options."s3a://b/x"]\nregion = "c"\n',
    )
    assert settings.storage_options("s3://b/x/table")["region"] == "c"
    assert settings.storage_options("s3://b/xy")["region"] == "a"


def test_options_of_other_clouds_are_left_out(tmp_path: Path) -> None:
    project = '[storage_options]\naws_region = "a"\ngoogle_service_account = "g"\ntimeout = "1s"\n'
    settings = load(tmp_path, project=project)
    assert settings.storage_options("gs://b/t") == {"google_service_account": "g", "timeout": "1s"}


def test_a_key_of_lakefs_and_one_of_the_cloud_stand_side_by_side(tmp_path: Path) -> None:
    project = (
        '[storage_options]\nlakefs_endpoint = "http://file"\nlakefs_access_key_id = "l"\n'
        'lakefs_secret_access_key = "ls"\naws_access_key_id = "k"\naws_secret_access_key = "s"\n'
        'google_service_account = "g"\n[storage_options."lakefs://repo"]\ntimeout = "9s"\n'
    )
    everything = load(tmp_path, project=project).storage_options("lakefs://repo/main/t")
    assert len(everything) == 7
    assert load(tmp_path, project=project).storage_options("s3://b/t") == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
    }
    settings = load(
        tmp_path, project=project, LAKEFS_ACCESS_KEY_ID="x", LAKECTL_SERVER_ENDPOINT_URL="http://e"
    )
    assert settings.storage_options("lakefs://repo/main/t").keys() == {
        "aws_access_key_id",
        "aws_secret_access_key",
        "google_service_account",
        "timeout",
    }


def test_numbers_and_booleans_are_options_too(tmp_path: Path) -> None:
    settings = load(tmp_path, project="[storage_options]\nmax_retries = 3\nallow_http = true\n")
    assert settings.storage_options("s3://b/t") == {"max_retries": "3", "allow_http": "true"}


def test_the_environment_says_where_catalogs_are_before_the_files_do(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        user='[catalog]\nsql_url = "sqlite:////user"\nunity_url = "https://user"\n',
        project='[catalog]\nsql_url = "sqlite:////project"\n',
        UC_TOKEN="token",
        LAKEFERRY_SQL_URL="",
    )
    found = settings.catalog_environment()
    assert found["LAKEFERRY_SQL_URL"] == "sqlite:////project"
    assert (found["UC_URL"], found["UC_TOKEN"]) == ("https://user", "token")
    settings = load(
        tmp_path, project='[catalog]\nunity_url = "https://file"\n', UC_URL="https://environment"
    )
    assert settings.catalog_environment()["UC_URL"] == "https://environment"


def test_what_a_catalog_grants_beats_the_files_and_a_flag_beats_that(tmp_path: Path) -> None:
    project = '[storage_options]\naws_access_key_id = "file"\naws_region = "r"\n'
    granted = {"aws_access_key_id": "granted", "aws_secret_access_key": "s"}
    settings = load(tmp_path, project=project, AWS_ACCESS_KEY_ID="environment")
    assert settings.storage_options("s3://b/t", granted) == {**granted, "aws_region": "r"}
    settings = load(tmp_path, project=project, flags={"access_key_id": "flag"})
    options = settings.storage_options("s3://b/t", granted)
    assert options == {"access_key_id": "flag", "aws_region": "r"}


@pytest.mark.parametrize(
    "text",
    [
        "catalog = 1",
        "[catalog]\nsql_url = 1",
        '[catalog]\nsql_url = ""',
        '[catalog]\nunity_token = "hunter2"',
        "engine =",
        'engine = "flink"',
        "engine = 3",
        "storage_options = 1",
        "[storage_options]\nregion = [1]",
        '[storage_options."ftp://host"]\nregion = "a"',
        "unknown = 1",
        "[storage-options]\nregion = 'a'",
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(tmp_path, project=text)
    assert "lakeferry.toml" in str(refused.value)
    assert refused.value.remedy


def test_a_variable_that_names_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="LAKEFERRY_ENGINE"):
        load(tmp_path, LAKEFERRY_ENGINE="flink")


def test_no_setting_shows_in_a_representation(tmp_path: Path) -> None:
    settings = load(tmp_path, user='[storage_options]\nsecret_access_key = "hunter2"\n')
    assert "hunter2" not in repr(settings)


def test_options_on_the_line_are_split_at_the_first_equals_sign() -> None:
    assert config.parse_options(["a=b=c", "a=d", "e="]) == {"a": "d", "e": ""}


def test_a_spark_connect_server_is_named_by_the_environment_or_a_file(tmp_path: Path) -> None:
    file = 'spark_remote = "sc://spark.example.com:15002"'
    assert load(tmp_path).spark_remote is None
    assert load(tmp_path, user=file).spark_remote == "sc://spark.example.com:15002"
    named = load(tmp_path, project=file, LAKEFERRY_SPARK_REMOTE="sc://other/;token=t")
    assert named.spark_remote == "sc://other/;token=t"
    assert "token" not in repr(named)
    for wrong in ('"http://spark"', "3", '"sc://spark/;token=t"'):
        with pytest.raises(InvalidInput, match="spark_remote"):
            load(tmp_path, project=f"spark_remote = {wrong}")

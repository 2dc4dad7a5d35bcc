from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import S3Store

from lakeferry.errors import InvalidInput
from lakeferry.storage import open_store
from lakeferry.storage.cloud_clients import Clients
from lakeferry.storage.store import StoreConfig


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def client(**options: str) -> S3Store:
    made = Clients(StoreConfig("s3://bucket/t", options)).quick
    assert isinstance(made, S3Store)
    return made


def signed(client: S3Store) -> str:
    from obstore import sign

    return sign(client, "GET", "x", timedelta(seconds=60))


KEYS = {"access_key_id": "mine", "secret_access_key": "s"}


def test_options_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "theirs")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "theirs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert "Credential=theirs" in signed(client())
    url = signed(client(AWS_Access_Key_Id="mine", SECRET_ACCESS_KEY="s", endpoint="http://a.b:2"))
    assert url.startswith("http://a.b:2/bucket/x?")
    assert "Credential=mine" in url
    assert "theirs" not in url


def test_the_endpoint_of_s3_beats_the_endpoint_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert signed(client(**KEYS)).startswith("http://127.0.0.1:2/")


def test_the_shared_files_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile p]\nregion = eu-west-3\nendpoint_url=http://h:1\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=d\naws_secret_access_key=s\n"
        "[p]\naws_access_key_id=pk\naws_secret_access_key=s\naws_session_token=tok\n"
    )
    assert "Credential=d%2F" in signed(client())
    monkeypatch.setenv("AWS_PROFILE", "p")
    url = signed(client())
    assert url.startswith("http://h:1/bucket/x?")
    assert "Credential=pk%2F" in url
    assert "eu-west-3" in url
    assert "Security-Token=tok" in url
    assert "Credential=mine%2F" in signed(client(**KEYS))


def test_a_profile_that_needs_a_sign_in_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile p]\nsso_session = x\n")
    monkeypatch.setenv("AWS_PROFILE", "p")
    with pytest.raises(InvalidInput, match="no static key") as raised:
        client()
    assert "export-credentials" in (raised.value.remedy or "")


@pytest.mark.parametrize(
    "options",
    [
        {"nonsense": "1"},
        {"timeout": "soon"},
        {"retry_timeout": "soon"},
        {"max_retries": "-1"},
        {"access_key_id": "alone"},
        {"virtual_hosted_style_request": "maybe"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        open_store("s3://bucket/t", options)


def test_options_of_another_cloud_are_left_alone() -> None:
    assert "Credential=mine" in signed(client(**KEYS, azure_storage_account_name="a", GOOGLE_X="1"))


def test_time_is_bounded_and_can_be_changed() -> None:
    assert client(**KEYS).retry_config["retry_timeout"] == timedelta(seconds=10)  # type: ignore[index]
    changed = client(**KEYS, retry_timeout="500ms", max_retries="2")
    assert changed.retry_config["retry_timeout"] == timedelta(milliseconds=500)  # type: ignore[index]
    assert changed.retry_config["max_retries"] == 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("az://box/t", {"account_name": "acct", "account_key": "a2V5"}),
        ("abfss://box@acct/t", {"account_key": "a2V5"}),
        ("gs://bucket/t", {"google_skip_signature": "true"}),
    ],
)
def test_other_clouds_open(uri: str, options: dict[str, str]) -> None:
    assert open_store(uri, options).config.options == options

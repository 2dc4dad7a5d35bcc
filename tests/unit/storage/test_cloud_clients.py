from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from lakeferry.errors import CatalogUnavailable, InvalidInput, ObjectNotFound, Unauthorized
from lakeferry.storage import open_config, open_store
from lakeferry.storage.cloud_clients import Clients, has_credentials
from lakeferry.storage.credential_renewal import CredentialSource, VendedCredentials
from lakeferry.storage.store import StoreConfig
from tests.support.obedient_server import ObedientServer, Reply


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


@dataclass(frozen=True)
class Issued:
    """A source that always issues the same; ``name`` keeps sources of tests apart."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    wrong: str | None = None

    def __call__(self) -> VendedCredentials:
        if self.wrong is not None:
            raise CatalogUnavailable(self.wrong, remedy="wait")
        return VendedCredentials(dict(self.options), 4_000_000_000_000)


VENDED = (("aws_access_key_id", "vended"), ("aws_secret_access_key", "hush"))


def issued(uri: str, options: dict[str, str], renewal: CredentialSource) -> Clients:
    return Clients(StoreConfig(uri, options, renewal=renewal))


def test_what_a_catalog_issues_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "theirs")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "theirs")
    token = ("aws_session_token", "kept")
    clients = issued("s3://bucket/t", {}, Issued("environment", (*VENDED, token)))
    assert isinstance(clients.quick, S3Store)
    url = signed(clients.quick)
    assert "Credential=vended" in url
    assert "X-Amz-Security-Token=kept" in url
    assert "theirs" not in url
    assert (clients.secret_of("vended"), clients.secret_of("theirs")) == ("hush", None)


def test_an_empty_session_token_is_none() -> None:
    source = Issued("empty token", (*VENDED, ("aws_session_token", "")))
    clients = issued("s3://bucket/t", {}, source)
    assert isinstance(clients.quick, S3Store)
    assert "Security-Token" not in signed(clients.quick)


def test_the_users_own_options_beat_what_a_catalog_issues() -> None:
    clients = issued("s3://bucket/t", KEYS, Issued("own", wrong="asked"))
    assert isinstance(clients.quick, S3Store)
    assert "Credential=mine" in signed(clients.quick)
    # Options for another cloud aren't credentials for this one.
    other = {"google_bearer_token": "x", "region": "eu"}
    clients = issued("s3://bucket/t", other, Issued("other cloud", VENDED))
    assert isinstance(clients.quick, S3Store)
    assert "Credential=vended" in signed(clients.quick)


def test_a_profile_without_a_key_will_do_for_what_a_catalog_issues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = eu-north-9\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    clients = issued("s3://bucket/t", {}, Issued("profile", VENDED))
    assert isinstance(clients.quick, S3Store)
    assert "eu-north-9" in signed(clients.quick)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/t", {}),
        ("gs://bucket/t", {}),
        ("az://box/t", {"azure_storage_account_name": "a"}),
    ],
)
def test_why_a_catalog_issues_nothing_is_what_the_store_says(
    uri: str, options: dict[str, str]
) -> None:
    source = Issued(f"wrong {uri}", wrong="the catalog is away")
    store = open_config(StoreConfig(uri, options, renewal=source))
    with pytest.raises(CatalogUnavailable, match="the catalog is away") as refused:
        store.get("x")
    assert refused.value.remedy == "wait"


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_other_clouds_get_what_a_catalog_issues(scheme: str) -> None:
    with Listening() as server:
        if scheme == "az":
            given = ("azure_storage_sas_token", "?sig=vended&sp=r")
            options = {"azure_storage_account_name": "a", "azure_storage_endpoint": server.url}
        else:
            given = ("google_bearer_token", "vended")
            options = {"google_base_url": server.url}
        source = Issued(server.url, (given,))
        options["allow_http"] = "true"
        store = open_config(StoreConfig(f"{scheme}://box/t", options, renewal=source))
        with pytest.raises(ObjectNotFound):
            store.get("x")
    assert "sig=vended" in server.heard[0] or "Bearer vended" in server.heard[0]


def test_credentials_for_another_cloud_are_refused() -> None:
    source = Issued("another cloud", (("google_bearer_token", "x"),))
    store = open_config(StoreConfig("s3://bucket/t", renewal=source))
    with pytest.raises(Unauthorized, match="another kind of store"):
        store.get("x")


class Listening(ObedientServer):
    """Has nothing, and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply:
        self.heard.append(f"{method} {target} {headers.get('Authorization')}")
        return 404, b""


@pytest.mark.parametrize(
    ("uri", "options", "variables", "expected"),
    [
        ("s3://b/t", {}, {}, False),
        ("s3://b/t", {"aws_region": "x"}, {"AWS_ENDPOINT_URL": "http://x"}, False),
        ("s3://b/t", {"aws_access_key_id": "k"}, {}, True),
        ("s3://b/t", {"access_key_id": "k"}, {}, True),
        ("s3://b/t", {"azure_storage_account_key": "k"}, {}, False),
        ("s3://b/t", {}, {"AWS_ACCESS_KEY_ID": "k"}, True),
        ("s3://b/t", {}, {"AWS_PROFILE": "has a key"}, True),
        ("s3://b/t", {}, {"AWS_PROFILE": "has none"}, False),
        ("s3://b/t", {}, {"AZURE_CLIENT_ID": "k"}, False),
        ("abfss://c@a.dfs.core.windows.net/t", {}, {"AZURE_CLIENT_ID": "k"}, True),
        ("gs://b/t", {}, {"GOOGLE_APPLICATION_CREDENTIALS": "file"}, True),
        ("gs://b/t", {}, {"AWS_ACCESS_KEY_ID": "k"}, False),
        ("file:///t", {}, {}, True),
    ],
)
def test_who_has_credentials_is_known(
    uri: str,
    options: dict[str, str],
    variables: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in [each for each in os.environ if each.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    shared = tmp_path / "credentials"
    shared.write_text("[has a key]\naws_access_key_id=k\naws_secret_access_key=s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_credentials(StoreConfig(uri, options)) is expected


@pytest.mark.parametrize(
    ("uri", "option"),
    [
        ("az://container/t", {"azure_storage_account_name": "two"}),
        ("gs://bucket/t", {"google_base_url": "http://127.0.0.1:9"}),
    ],
)
def test_containers_of_one_name_may_belong_to_two_accounts(
    uri: str, option: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {"azure_storage_account_name": "one", "google_skip_signature": "true"}
    source = open_store(uri, account)
    target = open_store(uri, {**account, **option})
    monkeypatch.setattr(obstore, "head", lambda *_: pytest.fail("nothing is to be asked"))
    assert target.copy_from(source, "x", "y", lambda _: None) is None

"""Makes an obstore client from a location, the environment and options.

Options are spelled as object_store and delta-rs spell them, in any case:
``aws_access_key_id`` or ``access_key_id``, ``timeout``, ``max_retries``,
``retry_timeout``, ``backoff_config.init_backoff`` and so on. They have precedence over the
environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``), which obstore reads by itself; the environment
has precedence over AWS's shared files, of which static keys, region and endpoint are read.
Credentials that a catalog issues (:mod:`lakeferry.storage.credential_renewal`) have precedence over
all but options.

Time is bounded, so that a call to a store that is down fails within about 15 seconds: five to
connect, fifteen for a silent server, and no new attempt after ten. The silence is measured from the
request's first byte, so a large upload on a slow line would look silent; :attr:`Clients.patient` is
for those.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore.exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lakeferry.errors import InvalidInput, LakeferryError, Unauthorized
from lakeferry.storage.cloud_errors import credentials_for
from lakeferry.storage.credential_renewal import RenewedCredentials, VendedCredentials, renewed
from lakeferry.storage.option_spellings import subject
from lakeferry.storage.store import AMAZON_S3, StoreConfig
from lakeferry.storage.uris import UriParts, split

_NO_ACCOUNT = "Account must be specified"

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, RetryConfig, S3Credential

CloudClient = S3Store | GCSStore | AzureStore | MemoryStore

_DEFAULTS = {"connect_timeout": "5s", "read_timeout": "15s", "timeout": "1h"}
_PATIENT_READ_TIMEOUT = "10m"
_MAX_RETRIES = 6
_RETRY_TIMEOUT = "10s"
_INIT_BACKOFF = "100ms"
_MAX_BACKOFF = "2s"

_ENDPOINT_OPTIONS = (
    "aws_endpoint_url_s3",
    "aws_endpoint_url",
    "aws_endpoint",
    "endpoint_url",
    "endpoint",
)
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
# If any of these is set, credentials come from there, and the shared files aren't read.
_CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
# They choose credentials that are somewhere else.
_NO_SECRETS = frozenset({"aws_profile", "aws_default_profile"})
_ENCRYPTION = (
    "server_side_encryption",
    "sse_kms_key_id",
    "sse_bucket_key_enabled",
    "sse_customer_key_base64",
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|m|h|)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}

_LEADS = {"s3": "aws_", "gs": "google_", "az": "azure_", "abfss": "azure_", "lakefs": "lakefs_"}

_AMAZON_HOSTS = (".amazonaws.com", ".amazonaws.com.cn")
_SERVICES = {"gs": "Google Cloud Storage", "az": "Azure Storage", "abfss": "Azure Storage"}

_MOST_SECRETS = 4

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


class Clients:
    """The clients for one place, made on first use."""

    def __init__(self, config: StoreConfig) -> None:
        """Read the options; invalid ones are refused here and not at first use."""
        self.place: UriParts = split(config.uri)
        lead = _LEADS.get(self.place.scheme)
        # One command may use two clouds, and its options are for both.
        self._options = {
            name.lower(): value
            for name, value in config.options.items()
            if not any(name.lower().startswith(other) for other in _LEADS.values() if other != lead)
        }
        self._retries = _take_retries(self._options)
        self._known: dict[str, str] = {}
        self.endpoint: str | None = None
        """The address of an S3 service that isn't Amazon's."""
        own = any(subject(name) == "credentials" for name in self._options)
        self._renewed = renewed(config.renewal) if config.renewal is not None and not own else None
        self._quick = self._make({})

    @property
    def quick(self) -> CloudClient:
        """The client for everything but large uploads."""
        return self._quick

    @cached_property
    def patient(self) -> CloudClient:
        """The client for large uploads, which may take longer than the time limit for an answer."""
        return self._make({"read_timeout": _PATIENT_READ_TIMEOUT})

    def secret_of(self, key: str) -> str | None:
        """Return the secret of an S3 key, if it is in the options or in the environment.

        ``None`` for keys from elsewhere, such as an instance's role.
        """
        return self._known.get(key)

    @property
    def service(self) -> str | None:
        """The name of the service; ``None`` for memory."""
        if self.place.scheme != "s3":
            return _SERVICES.get(self.place.scheme)
        host = urlsplit(self.endpoint or "").hostname
        is_amazon = host is None or host.endswith(_AMAZON_HOSTS)
        return AMAZON_S3 if is_amazon else "S3-compatible"

    @property
    def encrypts(self) -> bool:
        """Whether a setting chooses how S3 encrypts the objects that are written."""
        found = {name.removeprefix("aws_") for name in self._options}
        return any(bare in found or os.environ.get(f"AWS_{bare.upper()}") for bare in _ENCRYPTION)

    def is_set_like(self, other: Clients) -> bool:
        """Return whether both have the same options, so that a name means the same object.

        Buckets of one name may belong to two accounts, which only options tell apart.
        """
        return self._options == other._options

    def failed_renewal(self, error: Exception) -> LakeferryError | None:
        """Return why a catalog issued no credentials, if a request failed for that reason."""
        is_about_us = isinstance(error, obstore.exceptions.UnauthenticatedError)
        return self._renewed.failure if self._renewed is not None and is_about_us else None

    def _make(self, more: Mapping[str, str]) -> CloudClient:
        if self.place.scheme == "memory":
            return _memory(self.place.authority)
        settings = {**_DEFAULTS, **self._options, **more}
        # obstore's signatures want dictionaries of literal types; what options say is
        # only known here, and obstore checks each key itself.
        common: dict[str, Any] = {"retry_config": self._retries}
        try:
            if self.place.scheme == "s3":
                return self._make_s3(settings, common)
            if self._renewed is not None:
                common["credential_provider"] = _Provider(self._renewed, self.place.scheme)
            if self.place.scheme == "gs":
                return GCSStore(self.place.container, config=_typed(settings), **common)
            if self.place.account is not None:
                _replace(settings, "azure_storage_account_name", self.place.account)
            return AzureStore(self.place.container, config=_typed(settings), **common)
        except (obstore.exceptions.BaseError, ValueError) as error:
            cause = str(error).partition("\n\nDebug source")[0]
            if _NO_ACCOUNT in cause:
                raise InvalidInput(
                    f"can't open {self.place}",
                    cause="the storage account isn't given",
                    remedy=credentials_for(str(self.place)),
                    uri=str(self.place),
                ) from error
            raise InvalidInput(
                f"can't open {self.place} with these settings",
                cause=cause,
                remedy="check --storage-option and the environment's variables",
                uri=str(self.place),
            ) from error

    def _make_s3(self, settings: dict[str, str], common: dict[str, Any]) -> CloudClient:
        profile = _shared_profile(self._options, needs_key=self._renewed is None)
        key = _pop(settings, "access_key_id")
        secret = _pop(settings, "secret_access_key")
        token = _pop(settings, "session_token", "token")
        if self._renewed is not None:
            common["credential_provider"] = _Provider(self._renewed, "s3", self._known)
        elif key is None and secret is None and profile is not None:
            key, secret, token = profile.key, profile.secret, profile.token
        if (key is None) != (secret is None):
            raise InvalidInput(
                "an S3 key is incomplete",
                remedy="give access_key_id and secret_access_key together",
            )
        if key is not None and secret is not None:
            # Not by settings: a session token in the environment would be combined with another
            # key.
            credential: S3Credential = {
                "access_key_id": key,
                "secret_access_key": secret,
                "token": token,
                "expires_at": None,
            }
            common["credential_provider"] = lambda: credential
            self._known[key] = secret
        elif self._renewed is not None:
            pass
        elif (found_key := os.environ.get("AWS_ACCESS_KEY_ID")) and (
            found_secret := os.environ.get("AWS_SECRET_ACCESS_KEY")
        ):
            self._known[found_key] = found_secret
        given = [settings.pop(name) for name in _ENDPOINT_OPTIONS if name in settings]
        found = [os.environ[name] for name in _ENDPOINT_VARIABLES if os.environ.get(name)]
        shared = [profile.endpoint] if profile and profile.endpoint else []
        for endpoint in [*given, *found, *shared][:1]:
            settings["aws_endpoint"] = endpoint
            self.endpoint = endpoint.rstrip("/").lower()
            if endpoint.lower().startswith("http://"):
                settings.setdefault("allow_http", _pop(settings, "allow_http") or "true")
        region = _pop(settings, "region", "default_region")
        if region is None and not any(os.environ.get(name) for name in _REGION_VARIABLES):
            region = profile.region if profile else None
        if region is not None:
            settings["aws_region"] = region
        return S3Store(self.place.container, config=_typed(settings), **common)


def has_credentials(config: StoreConfig) -> bool:
    """Return whether options, the environment or AWS's shared files have credentials for a place.

    Those of an instance's role aren't looked for.
    """
    scheme = split(config.uri).scheme
    lead = _LEADS.get(scheme)
    if lead is None:
        return True
    clouds = tuple(other for other in _LEADS.values() if other != lead)
    options = [name.lower() for name in config.options if not name.lower().startswith(clouds)]
    variables = [name.lower() for name in os.environ if name.lower().startswith(lead)]
    found = (each for each in (*options, *variables) if subject(each) == "credentials")
    if any(each not in _NO_SECRETS for each in found):
        return True
    profile = _shared_profile(config.options, needs_key=False) if scheme == "s3" else None
    return profile is not None and profile.key is not None


@dataclass(frozen=True, slots=True)
class _Provider:
    """Gives obstore credentials that are renewed before they expire.

    obstore asks again five minutes before they expire, and before each request after that.
    ``secrets`` remembers the secret of each S3 key.
    """

    renewed: RenewedCredentials
    scheme: str
    secrets: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> Any:
        found = self.renewed.current()
        expires = None
        if found.expires_ms is not None:
            expires = datetime.fromtimestamp(found.expires_ms / 1000, UTC)
        return {**self._credential(found), "expires_at": expires}

    def _credential(self, found: VendedCredentials) -> dict[str, Any]:
        options = found.options
        try:
            if self.scheme == "gs":
                return {"token": options["google_bearer_token"]}
            if self.scheme != "s3":
                return {"sas_token": options["azure_storage_sas_token"].removeprefix("?")}
            key, secret = options["aws_access_key_id"], options["aws_secret_access_key"]
        except KeyError as missing:
            # Only the failed request shows it, as the catalog may do better next time.
            raise Unauthorized(
                "the catalog issued credentials for another kind of store",
                cause=f"{missing.args[0]} is missing",
            ) from None
        self.secrets[key] = secret
        while len(self.secrets) > _MOST_SECRETS:
            del self.secrets[next(iter(self.secrets))]
        token = options.get("aws_session_token") or None
        return {"access_key_id": key, "secret_access_key": secret, "token": token}


@dataclass(frozen=True, slots=True)
class _Profile:
    """The settings of one profile in AWS's shared files."""

    key: str | None
    secret: str | None
    token: str | None
    region: str | None
    endpoint: str | None


def _shared_profile(options: Mapping[str, str], *, needs_key: bool) -> _Profile | None:
    """Read the profile that the AWS tools would use, unless credentials come from elsewhere."""
    if any(os.environ.get(name) for name in _CREDENTIAL_VARIABLES):
        return None
    if any(name.endswith(("access_key_id", "skip_signature")) for name in options):
        return None
    chosen = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = chosen or "default"
    values: dict[str, str] = {}
    for variable, default, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        file = Path(os.environ.get(variable) or Path.home() / ".aws" / default)
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise InvalidInput(f"can't read {file}", cause=str(error)) from error
        if parser.has_section(section):
            values.update(parser.items(section))
    if chosen and needs_key and "aws_access_key_id" not in values:
        raise InvalidInput(
            f"the AWS profile {chosen!r} has no static key",
            cause="Lakeferry reads keys only; it doesn't sign in, assume a role or run a program",
            remedy='run eval "$(aws configure export-credentials --format env)" first',
        )
    return _Profile(
        values.get("aws_access_key_id"),
        values.get("aws_secret_access_key"),
        values.get("aws_session_token"),
        values.get("region"),
        values.get("endpoint_url"),
    )


def _take_retries(options: dict[str, str]) -> RetryConfig:
    """Take the options about retries out of ``options``, in delta-rs's spelling."""
    backoff: BackoffConfig = {
        "init_backoff": _duration(options, "backoff_config.init_backoff", _INIT_BACKOFF),
        "max_backoff": _duration(options, "backoff_config.max_backoff", _MAX_BACKOFF),
        "base": _number(options, "backoff_config.base", 2),
    }
    return {
        "max_retries": _number(options, "max_retries", _MAX_RETRIES),
        "retry_timeout": _duration(options, "retry_timeout", _RETRY_TIMEOUT),
        "backoff": backoff,
    }


def _duration(options: dict[str, str], name: str, default: str) -> timedelta:
    text = options.pop(name, default)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"not a duration: {name}={text}",
            remedy="write a number and a unit, such as 500ms, 10s or 2m",
        )
    return timedelta(seconds=float(match[1]) * _UNITS_S[match[2]])


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.pop(name, str(default))
    if not text.isdecimal():
        raise InvalidInput(f"not a number: {name}={text}")
    return int(text)


def _pop(settings: dict[str, str], *names: str) -> str | None:
    """Take out a setting, with or without ``aws_`` before its name."""
    found = [
        settings.pop(name) for bare in names for name in (f"aws_{bare}", bare) if name in settings
    ]
    return found[0] if found else None


def _replace(settings: dict[str, str], name: str, value: str) -> None:
    for other in (name, "account_name"):
        settings.pop(other, None)
    settings[name] = value


def _typed(settings: Mapping[str, str]) -> Any:
    return dict(settings)


def _memory(name: str) -> MemoryStore:
    with _memories_lock:
        return _memories.setdefault(name, MemoryStore())

"""Chooses, of the credentials that Unity Catalog issues, those for a place: by their prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lakeferry.catalogs.unity_delta_messages import StorageCredential
from lakeferry.errors import InvalidInput
from lakeferry.storage.credential_renewal import VendedCredentials
from lakeferry.storage.uris import split

_OPTIONS = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "azure.sas-token": "azure_storage_sas_token",
    "gcs.oauth-token": "google_bearer_token",
}


def issued_for(location: str, found: Iterable[StorageCredential]) -> VendedCredentials | None:
    """Return the credentials whose prefix fits a place best; ``None`` if none fits."""
    wanted = _folder(location)
    fitting = [one for one in found if wanted.startswith(_folder(one.prefix))]
    if not fitting:
        return None
    best = max(fitting, key=lambda one: len(_folder(one.prefix)))
    options = {_OPTIONS[key]: value for key, value in best.config.items() if key in _OPTIONS}
    given = {key: value for key, value in options.items() if value}
    return VendedCredentials(given, best.expiration_time_ms)


def _folder(location: str) -> str:
    with suppress(InvalidInput):
        location = str(split(location))
    return location.rstrip("/") + "/"

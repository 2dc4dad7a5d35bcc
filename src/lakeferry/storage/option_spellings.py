"""Recognises all spellings of a storage option.

One setting has several spellings (``aws_region``, ``region``, ``default_region``). Precedence
applies to the setting, whatever its spelling; ``config.py`` decides which source wins.
Credentials are replaced as a set: half of a key from one source is never joined with the other
half from another source.
"""

from __future__ import annotations

from collections.abc import Mapping

StorageOptions = Mapping[str, str]

# Prefixes of providers' variables and options; the longest that matches is used.
CLOUD_PREFIXES = ("aws_", "google_", "azure_storage_", "azure_")
LAKEFS_PREFIXES = ("lakefs_", "lakectl_")
_LAKEFS_SUBJECTS = {
    "lakectl_server_endpoint_url": "lakefs_endpoint",
} | dict.fromkeys(
    (
        "lakefs_access_key_id",
        "lakefs_secret_access_key",
        "lakectl_credentials_access_key_id",
        "lakectl_credentials_secret_access_key",
    ),
    "lakefs_credentials",
)
_SUBJECTS = {
    "default_region": "region",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "storage_account_name": "account_name",
} | dict.fromkeys(
    (
        "access_key_id",
        "secret_access_key",
        "session_token",
        "token",
        "profile",
        "default_profile",
        "skip_signature",
        "web_identity_token_file",
        "container_credentials_relative_uri",
        "container_credentials_full_uri",
        "access_key",
        "account_key",
        "master_key",
        "sas_key",
        "sas_token",
        "client_id",
        "client_secret",
        "tenant_id",
        "bearer_token",
        "federated_token_file",
        "service_account",
        "service_account_path",
        "service_account_key",
        "application_credentials",
    ),
    "credentials",
)


def override(below: StorageOptions, above: StorageOptions) -> dict[str, str]:
    """Return both, without the options of ``below`` for settings that ``above`` has too."""
    replaced = {subject(key) for key in above}
    kept = {key: value for key, value in below.items() if subject(key) not in replaced}
    return kept | dict(above)


def subject(name: str) -> str:
    """Return the setting that an option or a variable is about, whatever its spelling."""
    bare = name.lower()
    if bare.startswith(LAKEFS_PREFIXES):
        # lakeFS has its own credentials: they don't replace those of the cloud.
        return _LAKEFS_SUBJECTS.get(bare, bare)
    for prefix in CLOUD_PREFIXES:
        if bare.startswith(prefix):
            bare = bare.removeprefix(prefix)
            break
    return _SUBJECTS.get(bare, bare)

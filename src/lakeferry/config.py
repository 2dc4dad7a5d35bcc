"""Settings: merges flags, the environment and ``lakeferry.toml``, in that order of precedence.

A flag overrides the environment, which overrides ``./lakeferry.toml``, which overrides the
user's own ``lakeferry/lakeferry.toml`` in the user's configuration folder. The schema is small,
and an unknown key is refused::

    engine = "auto"                        # auto, local or spark
    spark_remote = "sc://spark.example.com:15002"    # a Spark Connect server; never a token

    [catalog]                              # where the catalogs are; never a token
    sql_url = "postgresql://catalog.example.com/lakeferry"
    unity_url = "https://unity.example.com"

    [storage_options]                      # for every table
    timeout = "30s"

    [storage_options."s3://archive/old"]   # for tables at that place and below it
    aws_endpoint = "https://objects.example.com"

Storage options have several spellings (``region``, ``aws_region``, ``AWS_REGION``), so
precedence applies to what an option means, whatever its spelling. Credentials are used as a set:
half of a key from one source is never combined with the other half from another.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakeferry.errors import Forbidden, InvalidInput
from lakeferry.storage.option_spellings import (
    CLOUD_PREFIXES,
    LAKEFS_PREFIXES,
    StorageOptions,
    override,
    subject,
)
from lakeferry.storage.side_folder import cache_folder as cache_folder
from lakeferry.storage.uris import normalise, same_place, split

FILE_NAME = "lakeferry.toml"
ENGINE_VARIABLE = "LAKEFERRY_ENGINE"
ENGINES = ("auto", "local", "spark")
SPARK_REMOTE_VARIABLE = "LAKEFERRY_SPARK_REMOTE"

_KEYS = ("engine", "spark_remote", "catalog", "storage_options")
# The keys of [catalog], and the environment variables for the same settings.
_CATALOG_VARIABLES = {"sql_url": "LAKEFERRY_SQL_URL", "unity_url": "UC_URL"}
_PREFIXES = {
    "s3": ("aws_",),
    "gs": ("google_",),
    "az": ("azure_storage_", "azure_"),
    "abfss": ("azure_storage_", "azure_"),
    # Tables in lakeFS are read from its object store, which may be in any cloud.
    "lakefs": (*CLOUD_PREFIXES, *LAKEFS_PREFIXES),
}
_ALL_PREFIXES = (*CLOUD_PREFIXES, *LAKEFS_PREFIXES)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The contents of one ``lakeferry.toml``. ``places`` are options by URI."""

    path: Path
    engine: str | None = None
    storage_options: StorageOptions = field(default_factory=dict, repr=False)
    places: Mapping[str, StorageOptions] = field(default_factory=dict, repr=False)
    catalog: StorageOptions = field(default_factory=dict, repr=False)
    spark_remote: str | None = None

    def layers(self, uri: str) -> list[StorageOptions]:
        """Return its options for the table at ``uri``, the most specific last."""
        nearby = [place for place in self.places if _is_at_or_below(uri, place)]
        return [self.storage_options, *(self.places[place] for place in sorted(nearby, key=len))]


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one run. ``flags`` are the options given on the command line."""

    engine: str = "auto"
    flags: StorageOptions = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: tuple[ConfigFile, ...] = ()
    """The files that were found, lowest precedence first."""
    spark_remote: str | None = field(default=None, repr=False)
    """The URL of the Spark Connect server that does the work of the engine ``spark``."""

    def catalog_environment(self) -> dict[str, str]:
        """Return the environment for opening a catalog, with missing values from the files."""
        said: dict[str, str] = {}
        for file in self.files:
            said |= {_CATALOG_VARIABLES[key]: url for key, url in file.catalog.items()}
        return said | {name: value for name, value in self.environment.items() if value}

    def storage_options(self, table: str, granted: StorageOptions | None = None) -> dict[str, str]:
        """Return the options with which to open ``table``.

        Options from the environment are left out, because the store reads them there.
        ``granted`` are options from a catalog for this table, which only a flag overrides.
        """
        uri = normalise(table)
        scheme = split(uri).scheme
        chosen: dict[str, str] = {}
        for file in self.files:
            for layer in file.layers(uri):
                chosen = override(chosen, layer)
        prefixes = _PREFIXES.get(scheme, ())
        decided = {
            subject(name)
            for name, value in self.environment.items()
            if value and name.lower().startswith(prefixes)
        }
        chosen = {key: value for key, value in chosen.items() if subject(key) not in decided}
        chosen = override(override(chosen, granted or {}), self.flags)
        foreign = tuple(prefix for prefix in _ALL_PREFIXES if prefix not in prefixes)
        return {key: value for key, value in chosen.items() if not key.lower().startswith(foreign)}


def load(
    *,
    engine: str | None = None,
    storage_options: StorageOptions | None = None,
    environment: Mapping[str, str] | None = None,
    working_folder: Path | None = None,
) -> Config:
    """Return the settings; the first two arguments come from flags.

    Raises :class:`~lakeferry.errors.InvalidInput` for an invalid file or variable.
    """
    variables = os.environ if environment is None else environment
    candidates = [user_file(variables), (working_folder or Path()) / FILE_NAME]
    files = tuple(file for path in candidates if (file := read_file(path)) is not None)
    named = variables.get(ENGINE_VARIABLE) or None
    if named is not None:
        _check_engine(named, f"the variable {ENGINE_VARIABLE}")
    by_file = [file.engine for file in files if file.engine is not None]
    remotes = [file.spark_remote for file in files if file.spark_remote is not None]
    return Config(
        engine=engine or named or (by_file[-1] if by_file else "auto"),
        flags=dict(storage_options or {}),
        environment=dict(variables),
        files=files,
        spark_remote=variables.get(SPARK_REMOTE_VARIABLE) or (remotes[-1] if remotes else None),
    )


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's own ``lakeferry.toml``, which may not exist."""
    home = environment.get("XDG_CONFIG_HOME")
    if home:
        return Path(home) / "lakeferry" / FILE_NAME
    return Path(environment.get("HOME") or "~").expanduser() / ".config" / "lakeferry" / FILE_NAME


def read_file(path: Path) -> ConfigFile | None:
    """Return the contents of a configuration file, or ``None`` if it doesn't exist."""
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise InvalidInput(
            f"{path} can't be read",
            cause=str(broken),
            remedy="correct the file; docs/cli.md describes its keys",
            file=str(path),
        ) from broken
    except OSError as error:
        raise Forbidden(f"{path} can't be read", cause=error.strerror, file=str(path)) from error
    for key in document:
        if key not in _KEYS:
            raise _unknown_key(path, key)
    engine = document.get("engine")
    if engine is not None:
        _check_engine(engine, str(path))
    general, places = _read_options(path, document.get("storage_options", {}))
    catalog = _read_catalog(path, document)
    return ConfigFile(path, engine, general, places, catalog, _read_remote(path, document))


def _read_remote(path: Path, document: dict[str, Any]) -> str | None:
    remote = document.get("spark_remote")
    if remote is None:
        return None
    if not isinstance(remote, str) or not remote.startswith("sc://"):
        raise _wrong(path, "spark_remote", "it must be a URL, sc://host:port")
    if "token=" in remote:
        raise _wrong(path, "spark_remote", f"a token belongs into {SPARK_REMOTE_VARIABLE}")
    return remote


def _read_options(path: Path, table: Any) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    if not isinstance(table, dict):
        raise _wrong(path, "storage_options", "it must be a table of options")
    general: dict[str, str] = {}
    places: dict[str, dict[str, str]] = {}
    for key, value in table.items():
        if not isinstance(value, dict):
            general[key] = _option(path, key, value)
            continue
        try:
            place = normalise(key)
        except InvalidInput as bad:
            raise _wrong(path, f"storage_options.{key!r}", f"{bad.message}") from bad
        places[place] = {name: _option(path, f"{key}.{name}", item) for name, item in value.items()}
    return general, places


def _read_catalog(path: Path, document: dict[str, Any]) -> dict[str, str]:
    table = document.get("catalog", {})
    if not isinstance(table, dict):
        raise _wrong(path, "catalog", "it must be a table of addresses")
    for key, value in table.items():
        if key not in _CATALOG_VARIABLES:
            raise _wrong(path, f"catalog.{key}", f"it may have {', '.join(_CATALOG_VARIABLES)}")
        if not isinstance(value, str) or not value:
            raise _wrong(path, f"catalog.{key}", "an address is a string")
    return table


def _option(path: Path, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise _wrong(path, key, "an option is a string, a whole number or a boolean")


def _check_engine(engine: object, where: str) -> None:
    if engine not in ENGINES:
        raise InvalidInput(
            f"{where} names an engine that doesn't exist: {engine!r}",
            remedy=f"use one of {', '.join(ENGINES)}",
            engine=str(engine),
        )


def _unknown_key(path: Path, key: str) -> InvalidInput:
    near = difflib.get_close_matches(key, _KEYS, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InvalidInput(
        f"{path} has an unknown key: {key!r}",
        remedy=f"{hint}the keys are {', '.join(_KEYS)}",
        file=str(path),
        key=key,
    )


def _wrong(path: Path, key: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"{path} has an invalid value: {key}",
        cause=cause,
        remedy="correct the file; docs/cli.md describes its keys",
        file=str(path),
        key=key,
    )


def _is_at_or_below(uri: str, place: str) -> bool:
    return same_place(uri, place) or uri.startswith(f"{place}/")


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """Return options given as ``KEY=VALUE``; the last of several wins.

    A message never repeats a value: it may be a secret.
    """
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidInput(
                "a storage option isn't written as KEY=VALUE",
                remedy="write for example --storage-option aws_region=eu-central-1",
            )
        options[key.strip()] = value
    return options

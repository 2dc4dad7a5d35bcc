"""Writes the reference of settings: the keys of ``lakeferry.toml``, and environment variables.

The keys, the engines and the variables are read from the source; what each means is said here,
and a variable without an explanation is an error.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import lakeferry
from lakeferry import config

SOURCE = Path(lakeferry.__file__).parent
_VARIABLE = re.compile(r"(?:LAKEFERRY|LAKEFS|LAKECTL|UC|XDG)_[A-Z_]+")

KEYS = {
    "engine": "which engine does the work that moves data: " + ", ".join(config.ENGINES),
    "spark_remote": "the URL of a Spark Connect server that does the work of the engine `spark`; "
    "without a token",
    "catalog.sql_url": "the database of Lakeferry's own catalog and of the fleet: SQLite or "
    "PostgreSQL",
    "catalog.unity_url": "the address of Unity Catalog",
    "storage_options": "options of stores, for all tables: names as in object_store and delta-rs",
    'storage_options."URI"': "options for the tables at that place and below it",
}
"""The keys of ``lakeferry.toml``."""

VARIABLES = {
    "LAKEFERRY_ENGINE": "the engine, as the key `engine`",
    "LAKEFERRY_SPARK_REMOTE": "the Spark Connect server, as the key `spark_remote`; this may have "
    "a token",
    "LAKEFERRY_SQL_URL": "the database of the catalog `sql` and of the fleet, by default SQLite in "
    "the user's data folder",
    "LAKEFERRY_TOKEN": "the token that is sent to servers, unless `--token` is given",
    "LAKEFERRY_WEBHOOK_SECRET": "of `serve`: the secret that senders of events have to know; "
    "without it all events are refused",
    "LAKEFERRY_CACHE": "the folder for jars, and for chains of tables that may only be read; by "
    "default `lakeferry` in `XDG_CACHE_HOME`",
    "LAKEFERRY_DEBUG": "any value: errors are shown with their traceback, and `serve` logs more",
    "LAKECTL_SERVER_ENDPOINT_URL": "the address of lakeFS",
    "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "the key for lakeFS",
    "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "and its secret",
    "LAKEFS_ENDPOINT": "the address of lakeFS, if `LAKECTL_SERVER_ENDPOINT_URL` isn't set",
    "LAKEFS_ACCESS_KEY_ID": "the key for lakeFS, likewise",
    "LAKEFS_SECRET_ACCESS_KEY": "and its secret, likewise",
    "UC_URL": "the address of Unity Catalog",
    "UC_TOKEN": "the token for it",
    "XDG_CONFIG_HOME": "the folder of `lakeferry/lakeferry.toml` and `lakeferry/remotes.json`; by "
    "default `~/.config`",
    "XDG_DATA_HOME": "the folder of the SQLite catalog, `lakeferry/catalog.sqlite`; by default "
    "`~/.local/share`",
    "XDG_CACHE_HOME": "the folder of caches; by default `~/.cache`",
}
"""What each variable is for. Those of clouds are their own (``AWS_…`` and so on)."""


def variables_in_source() -> set[str]:
    """Return the variables that the source names in a text of its own."""
    return {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _VARIABLE.fullmatch(node.value)
    }


def setting_page() -> str:
    """Return the reference as Markdown."""
    unknown = variables_in_source() ^ VARIABLES.keys()
    if unknown:
        raise ValueError(f"tools/docs/setting_reference.py and the source differ: {unknown}")
    rows = ["## Keys of lakeferry.toml\n", "| key | |", "|---|---|"]
    rows += [f"| `{key}` | {meaning} |" for key, meaning in KEYS.items()]
    rows += ["", "## Environment variables\n", "| variable | |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join([*rows, ""])

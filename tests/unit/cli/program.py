"""The installed program, run as a user runs it, and tables for it to look at."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeferry.storage import open_store
from tests.support import forked
from tests.support.history import History

PROGRAM = Path(sys.executable).parent / "lakeferry"
_CLOUD = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "LAKEFERRY_",
    "LAKEFS_",
    "LAKECTL_",
    "UC_",
    "XDG_CONFIG",
    "XDG_DATA",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """What the last line of standard error says under ``--json``."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        assert {"code", "message", "remedy"} <= error.keys()
        return error


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process's environment without anything that leads to a cloud or to settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_CLOUD)}
    return {**kept, "HOME": str(home), **(more or {})}


def run(
    *words: object, home: Path, variables: Mapping[str, str] | None = None, timeout: float = 60
) -> Ended:
    """Run the program in the folder ``home``, which is the user's home too."""
    ended = forked.run(
        [str(PROGRAM), *map(str, words)],
        cwd=home,
        env=environment(home, variables),
        timeout=timeout,
    )
    assert b"Traceback" not in ended.stderr
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def make(history: History, place: Path) -> Path:
    """Write a table to local disk, with data files that can be read."""
    history.write(open_store(str(place)), with_data=True)
    return place

"""A place for tables, on local disk or on a real S3 server, with the program to work on them.

Both keep objects as plain files, so that tests make tables there, compare trees
byte for byte, and break things, with the same few lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakeferry
from lakeferry.storage import normalise
from tests.support.history import Append, Delete, History, SetProperties, Upgrade
from tests.support.servers import S3Bucket
from tests.unit.cli.program import Ended, make, run

ORDERS = History().then(Append(3), Delete(1), Append(2))


def on_disk(tmp_path: Path, name: str = "lake") -> Lake:
    """Return a lake in a folder of that name."""
    folder = tmp_path / name
    folder.mkdir()
    return Lake(tmp_path / "home", folder, normalise(str(folder)))


def on_s3(tmp_path: Path, bucket: S3Bucket) -> Lake:
    """Return a lake in a bucket."""
    assert bucket.server.folder is not None
    folder = bucket.server.folder / bucket.name
    return Lake(tmp_path / "home", folder, bucket.uri, bucket.server.environment())


@dataclass(frozen=True, slots=True)
class Lake:
    """Tables below ``folder``, which the program knows as ``root``."""

    home: Path
    folder: Path
    root: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give the program a home."""
        self.home.mkdir(exist_ok=True)

    def uri(self, name: str) -> str:
        """Return where a table is, or would be."""
        return f"{self.root}/{name}"

    def make(self, name: str, history: History = ORDERS) -> str:
        """Make a table, with data files that can be read."""
        make(history, self.folder / name)
        return self.uri(name)

    def table(self, name: str) -> lakeferry.Table:
        """Open a table in this process."""
        return lakeferry.Table(self.uri(name), dict(self.variables))

    def run(self, *words: object, **variables: str) -> Ended:
        """Run the program with ``--json``."""
        merged = {**self.variables, **variables}
        return run(*words, "--json", home=self.home, variables=merged)

    def done(self, *words: object, **variables: str) -> Any:
        """Run the program, which has to do as it is told, and return its document."""
        ended = self.run(*words, **variables)
        assert ended.code == 0, ended.err
        return ended.document

    def refused(self, *words: object, **variables: str) -> str:
        """Run the program, which has to refuse with 1, and return the error's code."""
        ended = self.run(*words, **variables)
        assert (ended.code, ended.out) == (1, ""), (words, ended)
        assert ended.error["remedy"], words
        code: str = ended.error["code"]
        return code

    def tree(self) -> dict[str, bytes]:
        """Return every file there is, below the tables and in the program's home."""
        return {
            str(path): path.read_bytes()
            for folder in (self.folder, self.home)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def entry(target: str, **changes: Any) -> str:
    """Return a redirect's entry as the RFC spells it, READY unless it is changed."""
    value = {"Type": "Object Store", "State": "READY", "Spec": {"Location": target}}
    return json.dumps({**value, **changes})


def redirected(*values: tuple[str, str], features: tuple[str, ...] | None = None) -> History:
    """Return a table with entries of another program's making: pairs of property and value.

    ``features`` are those that go with the properties, unless others are given.
    """
    named = [name.removeprefix("delta.") for name, _ in values] if features is None else features
    readers = tuple(name for name in named if "ReaderWriter" in name)
    steps = (SetProperties(values), Upgrade(reader=readers, writer=tuple(named)))
    return ORDERS.then(*(steps if named else steps[:1]))

"""A place in which the commands of a page are run, with what the page takes for granted.

Addresses of a page lead to folders of the world (``s3://old`` is ``s3/old``, ``/lake`` is
``lake``), to a server with the root ``./server``, to a schema of Unity Catalog, and to a database.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import deltalake
import pyarrow as pa

import lakeferry
from tests.support import forked
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.page_commands import ShownCommand, missing, parse
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import PROGRAM, environment, make

_TIMEOUT_S = 120.0
_SERVER = re.compile(r"https?://(?:127\.0\.0\.1:8470|data\.example\.com)(?![\w:])")
_UNITY = "unity:sales.eu"
_POSTGRESQL = "postgresql://ferry@db.example.com/lakeferry"
_ABSOLUTE = re.compile(r"(?<![\w/.:])/(?=(?:lake|srv|backup)\b)")
_TOKEN = re.compile(r"lf_([0-9a-f]{16})_…")
_PRINTED_TOKEN = re.compile(r"lf_([0-9a-f]{16})_\S+")


@dataclass
class DocumentedWorld:
    """Runs commands as a page shows them."""

    folder: Path
    unity: Callable[[], UnityServer]
    postgresql: Callable[[], str]
    """Returns the URL of an empty database."""
    variables: dict[str, str] = field(default_factory=dict)
    _servers: list[lakeferry.Server] = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of this run, by the id that the page shows."""

    def happen(self, event: str) -> None:
        """Make something happen that a page tells, or takes for granted."""
        name, *words = event.split()
        paths = [Path(self._here(word)) for word in words if not word.isdigit()]
        places = [self.folder / path for path in paths]
        numbers = [int(word) for word in words if word.isdigit()]
        match name:
            case "fresh":
                self._empty()
            case "table":
                for _ in range(3):
                    self._append(places[0], 1000)
            case "table-with-vectors":
                layout = Layout(deletion_vectors="u", partitioned=True)
                make(History(layout).then(Append(16), DeleteRows(2), Append(1)), places[0])
            case "append":
                self._append(places[0], *numbers)
            case "moved":
                lakeferry.Table(str(places[0])).redirect(str(places[1]))
            case "remove":
                shutil.rmtree(places[0])
            case "file":
                places[0].parent.mkdir(parents=True, exist_ok=True)
                places[0].touch()
            case "token":
                places[0].mkdir(parents=True, exist_ok=True)
                token = lakeferry.create_token(str(places[0]), scope="write")
                assert isinstance(token, str)
                self.variables["LAKEFERRY_TOKEN"] = token
            case "server":
                self._serve(places[0])
            case _:
                raise AssertionError(f"a page tells of an unknown event: {event}")

    def run(self, command: ShownCommand) -> list[str]:
        """Run a command; return what differs from what the page shows."""
        words = shlex.split(command.line, comments=True)
        if words[:1] == ["export"] and len(words) == 2:
            name, _, value = words[1].partition("=")
            self.variables[name] = self._here(value)
            return []
        if words[:2] == ["lakeferry", "serve"]:
            options = parse([self._here(word) for word in words[1:]]).params
            place = self.folder / options["root"]
            self._serve(place, anonymous_read=options["anonymous_read"])
            return list(missing(command.output, f"serving at {self._url}", self._names()))
        code, printed = self._run(command.line)
        for shown, real in zip(
            _TOKEN.findall("\n".join(command.output)),
            _PRINTED_TOKEN.finditer(printed),
            strict=False,
        ):
            self._tokens[shown] = real[0]
        if (code != 0) != command.fails:
            return [f"exit code {code}: {printed}"]
        return [
            f"{line}\n    isn't among:\n{printed}"
            for line in missing(command.output, printed, self._names())
        ]

    def close(self) -> None:
        """Stop the servers."""
        for server in self._servers:
            server.stop()
        self._servers.clear()

    def _run(self, line: str) -> tuple[int, str]:
        """Run a command line; return its exit code, and what it printed."""
        line = line.replace("\\\n", " ")
        first, *rest = re.split(r" \| ", line, maxsplit=1)
        words = shlex.split(first, comments=True)
        if words[0] != "lakeferry" or re.search(r"\s(?:>|&&|;)\s", first):
            shell = ["bash", "-euc", self._here(line)]
            ended = subprocess.run(
                shell,
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
            return ended.returncode, (ended.stderr + ended.stdout).decode()
        ended = forked.run(
            [str(PROGRAM), *(self._here(word) for word in words[1:])],
            cwd=self.folder,
            env=self._environment(),
            timeout=_TIMEOUT_S,
        )
        code, out = ended.returncode, ended.stdout
        if rest and code == 0:
            piped = subprocess.run(
                ["sh", "-c", self._here(rest[0])],
                cwd=self.folder,
                env=self._environment(),
                input=out,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
            code, out = piped.returncode, piped.stdout + piped.stderr
        return code, (ended.stderr + out).decode()

    def _environment(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return environment(self.folder, {**self.variables, "PATH": path})

    def _here(self, text: str) -> str:
        """Return a text of a page with the addresses of this world."""
        if _UNITY in text:
            server = self.unity()
            self.variables |= server.environment()
            text = text.replace(_UNITY, f"unity:{server.schema}")
        if _POSTGRESQL in text:
            text = text.replace(_POSTGRESQL, self.postgresql())
        for shown, real in self._tokens.items():
            text = text.replace(f"lf_{shown}_…", real).replace(shown, real.split("_")[1])
        if _SERVER.search(text):
            text = _SERVER.sub(self._url, text)
        text = _ABSOLUTE.sub(f"{self.folder}/", text)
        return re.sub(r"\bs3://", f"{self.folder}/s3/", text)

    def _names(self) -> dict[str, str]:
        """Return this world's addresses, each with the page's for it."""
        names = {
            f"file://{self.folder}/s3/": "s3://",
            f"{self.folder}/s3/": "s3://",
            f"file://{self.folder}/lake": "file:///lake",
            f"{self.folder}/": "/",
        }
        if self._servers:
            names[self._url] = "http://127.0.0.1:8470"
        if any(name == "UC_URL" for name in self.variables):
            names[f"unity:{self.unity().schema}"] = _UNITY
        return names

    @property
    def _url(self) -> str:
        if not self._servers:
            raise AssertionError("the page uses a server that hasn't been started")
        return self._servers[-1].url

    def _serve(self, root: Path, *, anonymous_read: bool = False) -> None:
        server = lakeferry.Server(str(root), anonymous_read=anonymous_read)
        server.start()
        self._servers.append(server)

    def _append(self, place: Path, rows: int) -> None:
        data = pa.table({"id": range(rows), "amount": [number * 1.5 for number in range(rows)]})
        place.parent.mkdir(parents=True, exist_ok=True)
        deltalake.write_deltalake(str(place), data, mode="append")

    def _empty(self) -> None:
        self.close()
        for each in self.folder.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        self.variables.clear()
        self._tokens.clear()

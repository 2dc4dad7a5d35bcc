"""``lakeferry ui`` and ``serve`` as processes, whose pages a visitor opens."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.unit.cli.program import PROGRAM, environment

_ENDS_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class ConsoleProcess:
    """A running console. ``url`` is what it printed: with its token, if it is ``ui``."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def port(self) -> int:
        """Where it listens."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def page(self, path: str) -> str:
        """Return the URL of a page."""
        parts = urlsplit(self.url)
        lead = "/-" if parts.path in ("", "/") else parts.path.partition("/sign-in")[0]
        return f"{parts.scheme}://{parts.netloc}{lead}{path}"

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait(_ENDS_WITHIN_S)

    def terminate(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_ENDS_WITHIN_S)


@contextmanager
def console_process(
    home: Path, *words: object, variables: Mapping[str, str] | None = None
) -> Iterator[ConsoleProcess]:
    """Run ``lakeferry WORDS`` on a free port, or at the port that is given, until the context ends.

    ``words`` are ``ui`` by default; ``home`` is the user's home, with the fleet's database.
    """
    home.mkdir(exist_ok=True)
    log = home / "console.log"
    asked = [str(word) for word in words or ("ui",)]
    port = [] if "--port" in asked else ["--port", "0"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [str(PROGRAM), *asked, *port, "--json"],
            cwd=home,
            env=environment(home, variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, log.read_text()
        yield ConsoleProcess(process, json.loads(first)["url"], log)
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait(_ENDS_WITHIN_S)
        process.stdout.close()

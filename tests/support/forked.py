"""Programs, started by a fork of a process that has their modules already.

Tests run programs many hundreds of times, and most of what a run takes is to load modules.
Here one process loads them, once, and forks for every run: with its own arguments, environment,
folder and output, and ended as any process is. It has one thread and has opened nothing, so
that its forks find what a new process finds. Tests that are about starting and about signals
start the program itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

LAKEFERRY = "lakeferry.cli.main"
MODULES = (LAKEFERRY, "tests.support.killed_copy", "tests.support.killed_move")
"""The programs; each has a function ``main``."""
_NOT_LOADED = re.compile(r"spark|[.](migrations|__main__)\b")
"""PySpark takes long to load, and few programs use it; migrations are for alembic alone to load."""
_BY_CALLS = (
    *("alembic.command", "alembic.config", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"),
    *("sqlalchemy.dialects.sqlite.pysqlite", "rich.live", "rich.progress_bar", "rich.table"),
)
"""What our modules load where they need it."""
_REQUEST_BYTES = 1 << 20
_BEGIN_S = 120.0


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the program and return how it ended, as :func:`subprocess.run` does."""
    if sys.platform != "linux":
        # Libraries of other systems don't all bear a fork.
        return subprocess.run(
            words, cwd=cwd, env=env, timeout=timeout, capture_output=True, check=False
        )
    with ForkedRun(words, cwd=cwd, env=env) as process:
        return process.wait(timeout)


class ForkedRun:
    """A program that runs. It is killed at the end of the context if it still does."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        module: str = LAKEFERRY,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        new_session: bool = False,
    ) -> None:
        """Start a program, one of :data:`MODULES`.

        It reads nothing, and what it writes is kept for :meth:`wait`, unless it is given
        descriptors; the caller closes those.
        """
        self._words = list(words)
        self._kept = {
            name: os.memfd_create(name)
            for name, given in (("out", stdout), ("errors", stderr))
            if given is None
        }
        self._asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.settimeout(_BEGIN_S)
        self._asked.connect(_listening(os.getpid()))
        request = {
            "argv": self._words,
            "cwd": str(cwd),
            "env": dict(env),
            "module": module,
            "new_session": new_session,
        }
        with Path(os.devnull).open("rb") as nothing:
            handed = (
                nothing.fileno() if stdin is None else stdin,
                self._kept["out"] if stdout is None else stdout,
                self._kept["errors"] if stderr is None else stderr,
            )
            socket.send_fds(self._asked, [json.dumps(request).encode()], handed)
            self.pid = int(self._asked.recv(64))
        self._ended: subprocess.CompletedProcess[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._ended is not None or bool(select.select([self._asked], [], [], 0)[0])

    def kill(self) -> None:
        """Kill the process, unless :meth:`wait` has said how it ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless :meth:`wait` has said how it ended."""
        if self._ended is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float) -> subprocess.CompletedProcess[bytes]:
        """Return how the process ended; kill it, and raise an error, if that takes too long."""
        if self._ended is not None:
            return self._ended
        self._asked.settimeout(timeout)
        try:
            status = int(self._asked.recv(64))
        except TimeoutError:
            self.kill()
            raise subprocess.TimeoutExpired(self._words, timeout) from None
        written = {
            name: os.pread(file, os.fstat(file).st_size, 0) for name, file in self._kept.items()
        }
        self._ended = subprocess.CompletedProcess(
            self._words,
            os.waitstatus_to_exitcode(status),
            written.get("out", b""),
            written.get("errors", b""),
        )
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self.close()

    def close(self) -> None:
        """Close what it was asked with, and what it has written."""
        self._asked.close()
        for file in self._kept.values():
            os.close(file)
        self._kept.clear()


@cache
def _listening(owner: int) -> str:
    """Start the process that forks for its owner; return where it listens until that ends."""
    assert owner == os.getpid()
    folder = tempfile.TemporaryDirectory(prefix="forks")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def stop() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(stop)
    return path


def _serve(path: str) -> str:
    """Fork for each connection; in the fork that is to be a program, return its module."""
    import lakeferry

    names = [module.name for module in pkgutil.walk_packages(lakeferry.__path__, "lakeferry.")]
    for name in (*MODULES, *names, *_BY_CALLS):
        if not _NOT_LOADED.search(name):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    # The allocator's own thread knows of forks; any other would be missing in them.
    threads = {file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}
    assert len(threads - {"jemalloc_bg_thd"}) == 1, threads
    # Who waits for a run is reaped by nobody, and Ctrl-C is for who asked for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                # Whoever started this has ended.
                os._exit(0)
            connection, _ = listening.accept()
            if os.fork() == 0:
                break
            connection.close()
    return _attend(connection)


def _attend(connection: socket.socket) -> str:
    """Fork once more, and tell how that ended; in that fork return the program's module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data, handed, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    asked = json.loads(data)
    pid = os.fork()
    if pid:
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(status).encode())
        os._exit(0)
    connection.close()
    for number, descriptor in enumerate(handed):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if asked["new_session"]:
        os.setsid()
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["argv"]
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    return str(asked["module"])


def _end(code: int) -> None:
    """End as a process does, but for taking apart every module that was ever loaded."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    program = importlib.import_module(_serve(sys.argv[1]))
    try:
        _end(program.main() or 0)
    except Exception:  # noqa: BLE001 - as any program that ends with an error
        traceback.print_exc()
        _end(1)

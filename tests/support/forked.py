"""The program, started by a fork of a process that has its modules already.

Tests run the program many hundreds of times, and most of what a run takes is to load modules.
Here one process loads them, once, and forks for every run: with its own arguments, environment,
folder and output, and ended as any process is. It has one thread and has opened nothing, so
that its forks find what a new process finds. Tests that are about starting and about signals
start the program itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_REQUEST_BYTES = 1 << 20


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the program and return how it ended, as :func:`subprocess.run` does."""
    if sys.platform != "linux":
        # Libraries of other systems don't all bear a fork.
        return subprocess.run(
            words, cwd=cwd, env=env, timeout=timeout, capture_output=True, check=False
        )
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked,
    ):
        asked.settimeout(timeout)
        asked.connect(_listening(os.getpid()))
        request = json.dumps({"argv": list(words), "cwd": str(cwd), "env": dict(env)})
        socket.send_fds(asked, [request.encode()], [out.fileno(), err.fileno()])
        pid = int(asked.recv(64))
        try:
            status = int(asked.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(words), timeout) from None
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


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


def _serve(path: str) -> None:
    """Fork for each connection; return in the fork that is to be the program."""
    import lakeferry.api.table
    import lakeferry.cli

    for module in pkgutil.iter_modules(lakeferry.cli.__path__):
        importlib.import_module(f"lakeferry.cli.{module.name}")
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
    _attend(connection)


def _attend(connection: socket.socket) -> None:
    """Fork once more, and tell how that ended; return in the fork that is to be the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data, handed, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 2)
    asked = json.loads(data)
    pid = os.fork()
    if pid:
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(status).encode())
        os._exit(0)
    connection.close()
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *handed)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["argv"]


def _end(code: int) -> None:
    """End as a process does, but for taking apart every module that was ever loaded."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
    from lakeferry.cli.main import main

    _end(main())

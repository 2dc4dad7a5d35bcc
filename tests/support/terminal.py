"""The program in a real terminal of a chosen width, with answers typed into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.forked import ForkedRun
from tests.unit.cli.program import PROGRAM, environment

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


def shown(
    *words: object,
    home: Path,
    columns: int = 80,
    answer: str = "",
    asked: Callable[[], object] = lambda: None,
    until: str = "",
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60,
    program: Path = PROGRAM,
) -> tuple[int, str]:
    """Run the program and return its exit code and all that the terminal showed.

    ``answer`` is typed when the program asks a question, a line that ends with ``]: ``. ``asked``
    is called just before. As soon as the terminal shows ``until``, the program is killed.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    given = {key: value for key, value in environment(home).items() if key != "COLUMNS"}
    command = [str(program), *map(str, words)]
    env = given | {"TERM": "xterm"} | dict(variables or {})
    process: subprocess.Popen[bytes] | ForkedRun
    if program == PROGRAM:
        process = ForkedRun(
            command, cwd=home, env=env, stdin=its, stdout=its, stderr=its, new_session=True
        )
    else:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=env,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
    os.close(its)
    seen, deadline = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    more = os.read(ours, 65536)
                except OSError:
                    break
                if not more:
                    break
                seen += more
                if until and until in _STEERING.sub("", seen.decode(errors="replace")):
                    process.kill()
                    break
                if answer and seen.rstrip(b"\x1b[0m").endswith(b"]: "):
                    asked()
                    os.write(ours, f"{answer}\n".encode())
                    answer = ""
        ended = process.wait(max(1.0, deadline - time.monotonic()))
        code = ended if isinstance(ended, int) else ended.returncode
    finally:
        process.kill()
        if isinstance(process, ForkedRun):
            process.close()
        os.close(ours)
    lines = _STEERING.sub("", seen.decode()).replace("\r\n", "\n").replace("\r", "\n")
    return code, lines

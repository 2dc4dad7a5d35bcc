"""Names processes, so that another process can tell later whether one has ended.

A process is named by its machine, its number and its time of start. The machine includes its
name, its last boot and the namespace of process numbers, so that a container isn't taken for
another one.
Only Linux tells all this. Of processes elsewhere nobody can tell whether they run.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
_NAME = re.compile(r"([0-9a-f]{8})-([0-9]{1,10})-([0-9]{1,20})")
_UNKNOWN_MACHINE = "0" * 8
_START_FIELD = 19
"""Index of the time of start among the fields of ``/proc/PID/stat`` after the program's name."""


def this_process() -> str:
    """Return the name of this process: letters, digits and ``-``."""
    return _named(os.getpid())


def has_ended(name: str) -> bool | None:
    """Return True if a process has ended, False if it runs, ``None`` if nobody can tell."""
    match = _NAME.fullmatch(name)
    try:
        if match is None or match[1] == _UNKNOWN_MACHINE or match[1] != _machine():
            return None
        number = int(match[2])
        try:
            return str(_started(number)) != match[3]
        except OSError:
            return None if _exists(number) else True
    except OSError:
        return None


@lru_cache(maxsize=1)
def _named(pid: int) -> str:
    # The number is the key: a forked process has another one.
    try:
        return f"{_machine()}-{pid}-{_started(pid)}"
    except OSError:
        return f"{_UNKNOWN_MACHINE}-{pid}-0"


def _machine() -> str:
    """Return the name of this machine, or raise ``OSError`` if it doesn't tell."""
    if os.readlink(_PROC / "self") != str(os.getpid()):
        raise OSError(f"{_PROC} numbers processes as another namespace does")
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    numbers = os.readlink(_PROC / "self/ns/pid")
    # Copies of a running virtual machine have one boot, but usually not one name.
    return hashlib.sha256(f"{boot} {numbers} {os.uname().nodename}".encode()).hexdigest()[:8]


def _started(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; ``None`` if it has ended.

    Raises ``OSError`` if there is no such process, and also if that can't be read: ``/proc`` may
    hide the processes of other users, and this process may have no file descriptor left.
    """
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    state, *fields = text.rpartition(")")[2].split() or [""]
    if len(fields) < _START_FIELD:
        raise OSError(f"{_PROC}/{pid}/stat has another form")
    # A process that has ended may still be listed until its parent has noticed.
    return None if state in "ZX" else int(fields[_START_FIELD - 1])


def _exists(pid: int) -> bool:
    """Return whether a process may have that number, without reading anything."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True

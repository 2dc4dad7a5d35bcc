"""A fair way to measure: each run in a fresh process, peers in turn, medians of several.

What a run costs is its wall-clock time, imports and the interpreter's start
left out, and the largest amount of memory that its process ever held, nothing
subtracted.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHILD = "--run"


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs: the median of several runs."""

    seconds: float
    peak_mib: float
    result: object


@dataclass(frozen=True, slots=True)
class Bar:
    """One ratio that a benchmark promises."""

    name: str
    ours: float
    peer: float
    unit: str
    limit: float

    @property
    def ratio(self) -> float:
        """Ours by the peer's."""
        return self.ours / self.peer

    @property
    def is_met(self) -> bool:
        """Whether the promise is kept."""
        return self.ratio <= self.limit


Runner = Callable[[str], Callable[[], object]]
"""Given an argument, imports what it needs and returns what is to be timed."""


def child(runners: Mapping[str, Runner]) -> None:
    """In a child process: run what the command line asks for, print its cost and end."""
    if CHILD not in sys.argv:
        return
    name, argument = sys.argv[sys.argv.index(CHILD) + 1 :]
    work = runners[name](argument)
    begun = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "peak_mib": _peak_mib(), "result": result}))
    sys.exit(0)


def _peak_mib() -> float:
    """Return this process's high-water mark.

    ``ru_maxrss`` also counts what the process was before it became this program,
    a copy of its parent, so the kernel's own mark is asked first.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def compare(program: str, work: Sequence[tuple[str, str]], runs: int) -> dict[str, Cost]:
    """Run each (runner, argument) ``runs`` times, taking turns, and return medians by runner.

    One round before them isn't counted: it brings the files into the system's cache.
    """
    found: dict[str, list[Cost]] = {name: [] for name, _ in work}
    for round_ in range(runs + 1):
        for name, argument in work:
            done = subprocess.run(
                [sys.executable, program, CHILD, name, argument],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            if round_:
                found[name].append(Cost(**json.loads(done.stdout.splitlines()[-1])))
    return {
        name: Cost(
            statistics.median(cost.seconds for cost in costs),
            statistics.median(cost.peak_mib for cost in costs),
            costs[0].result,
        )
        for name, costs in found.items()
    }


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what this process asks of any store; ``bytes`` is how much came back.

    Counts are the same on every machine, so that tests can assert them. Threads that run
    already, as those of a server that another test has left, don't count.
    """
    from lakeferry.storage.call_counts import Calls

    found: Counter[str] = Counter()
    others = set(threading.enumerate()) - {threading.current_thread()}
    add, add_bytes = Calls.add, Calls.add_bytes
    lock = threading.Lock()

    def noted(self: Calls, verb: str, path: str) -> None:
        if threading.current_thread() not in others:
            with lock:
                found[verb] += 1
        add(self, verb, path)

    def noted_bytes(self: Calls, count: int) -> None:
        if threading.current_thread() not in others:
            with lock:
                found["bytes"] += count
        add_bytes(self, count)

    Calls.add, Calls.add_bytes = noted, noted_bytes  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Calls.add, Calls.add_bytes = add, add_bytes  # type: ignore[method-assign]


def report(bars: Sequence[Bar]) -> int:
    """Print the ratios as a table; return the program's exit status.

    With ``LAKEFERRY_BENCH_PAGE`` they are also kept for the page of all ratios.
    """
    if os.environ.get("LAKEFERRY_BENCH_PAGE"):
        from support import page

        program = sys.modules["__main__"]
        page.keep(Path(sys.argv[0]).stem, (program.__doc__ or "").partition("\n")[0], bars)
    width = max(len(bar.name) for bar in bars)
    print(f"{'':{width}}  {'ours':>12}  {'peer':>12}  {'ratio':>6}  {'bar':>5}")
    for bar in bars:
        print(
            f"{bar.name:{width}}  {bar.ours:>8.3f} {bar.unit:<3}  {bar.peer:>8.3f} {bar.unit:<3}  "
            f"{bar.ratio:>6.3f}  {bar.limit:>5.2f}  {'met' if bar.is_met else 'MISSED'}"
        )
    return 0 if all(bar.is_met for bar in bars) else 1

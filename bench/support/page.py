"""The page with every ratio of every benchmark, ``bench/README.md``.

Each benchmark keeps what it found in a file below ``bench/results``, so that the page can be made
anew when only some of them were run. A bar is replaced by the bar of the same name.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from support.measure import Bar

BENCH = Path(__file__).resolve().parents[1]

_TOP = """# What Lakeferry costs

Each row compares Lakeferry with a peer that ran in the same run, on the same machine, by turns.
*Ratio* is ours by the peer's, so less is better; *bar* is the highest ratio that we accept.
Read the ratios: the seconds belong to the machine. The first words of each benchmark's file say
what it measures, and who the peer is.

`make bench` runs all benchmarks and writes this page; `make bench BENCHMARKS="replay copies"` runs
some of them, and the other rows stay.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A bar, and what it was measured with."""

    name: str
    ours: float
    peer: float
    unit: str
    limit: float
    commit: str
    day: str
    machine: str

    @property
    def row(self) -> str:
        """Return the bar as a row of the page."""
        bar = Bar(self.name, self.ours, self.peer, self.unit, self.limit)
        ours, peer = (_number(value, self.unit) for value in (self.ours, self.peer))
        verdict = "met" if bar.is_met else "**missed**"
        cells = [self.name, ours, peer, f"{bar.ratio:.3f}", f"{self.limit:.2f}", verdict]
        return f"| {' | '.join([*cells, f'`{self.commit}`', self.day])} |"


def keep(benchmark: str, about: str, bars: Sequence[Bar], folder: Path = BENCH) -> None:
    """Keep what a benchmark found, and write the page anew."""
    file = folder / "results" / f"{benchmark}.json"
    file.parent.mkdir(exist_ok=True)
    bars_by_name = {bar.name: bar for bar in (_read(file)[1] if file.exists() else [])}
    commit, day, machine = _commit(), f"{datetime.now(UTC):%Y-%m-%d}", _machine()
    for bar in bars:
        bars_by_name[bar.name] = Measured(**asdict(bar), commit=commit, day=day, machine=machine)
    found = {"about": about, "bars": [asdict(bar) for bar in bars_by_name.values()]}
    file.write_text(json.dumps(found, indent=1) + "\n")
    (folder / "README.md").write_text(page(folder))


def page(folder: Path = BENCH) -> str:
    """Return the page of all that was kept."""
    sections = [_TOP]
    for file in sorted((folder / "results").glob("*.json")):
        about, bars = _read(file)
        machines = "; ".join(sorted({bar.machine for bar in bars}))
        sections.append(
            f"## [{file.stem}]({file.stem}.py)\n\n{about}\n\nMachine: {machines}.\n\n"
            "| what | ours | peer | ratio | bar | | commit | day |\n"
            "|---|--:|--:|--:|--:|---|---|---|\n" + "\n".join(bar.row for bar in bars) + "\n"
        )
    return "\n".join(sections)


def _read(file: Path) -> tuple[str, list[Measured]]:
    found = json.loads(file.read_text())
    return found["about"], [Measured(**bar) for bar in found["bars"]]


def _number(value: float, unit: str) -> str:
    if not unit and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3f} {unit}".rstrip()


def _commit() -> str:
    """Return the commit that is checked out; ``+`` says that files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=BENCH, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src", "*.py")
    return (git("rev-parse", "--short=9", "HEAD") or "unknown") + ("+" if changed else "")


def _machine() -> str:
    """Return the machine's processor, memory and system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = f"{os.cpu_count()} cores"
    model = models[0] if models else platform.machine()
    return f"{cores} ({model}), {memory:.0f} GiB, {platform.system()}"

"""What a run of the demo found: counts, who saw what, and the checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakeferry.examples.demo.writer import FIRST_ID, ROWS_PER_COMMIT, Acknowledged, RefusedAttempt

if TYPE_CHECKING:
    from lakeferry.api.table import Outcome


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """A condition that must hold, and whether it did."""

    what: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What one client saw while the table was redirected."""

    client: str
    path: str
    version: int
    rows: int
    writes: str


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time span of an activity."""

    name: str
    from_ms: int
    to_ms: int


@dataclass(slots=True)
class Findings:
    """The results so far; added to while the demo runs."""

    old: Path
    new: Path
    began_ms: int
    enabled: Outcome | None = None
    disabled: Outcome | None = None
    sights: list[Sight] = field(default_factory=list)
    checks: list[DemoCheck] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    refused: list[RefusedAttempt] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    rows: int = 0
    ended_ms: int = 0

    @property
    def there(self) -> Outcome:
        """The outcome of the move."""
        assert self.enabled is not None
        return self.enabled

    @property
    def back(self) -> Outcome:
        """The outcome of the withdrawal."""
        assert self.disabled is not None
        return self.disabled

    @property
    def rows_acknowledged(self) -> int:
        """How many rows were acknowledged to the writer as committed."""
        return len(self.acknowledged) * ROWS_PER_COMMIT

    def at_target(self, append: Acknowledged) -> bool:
        """Tell whether an append landed at the new place."""
        return append.place == self.there.target

    @property
    def failed(self) -> list[DemoCheck]:
        """The failed checks."""
        return [check for check in self.checks if not check.ok]

    @property
    def longest_wait_ms(self) -> int:
        """The longest that the writer had to try again for one append."""
        return max((each.waited_ms for each in self.acknowledged), default=0)

    @property
    def retried(self) -> int:
        """How many appends were refused before they were acknowledged."""
        return sum(each.attempts > 1 for each in self.acknowledged)

    def as_document(self) -> dict[str, Any]:
        """Return the numbers of the run, for programs."""
        return {
            "source": self.there.source,
            "target": self.there.target,
            "writer": {
                "commits": len(self.acknowledged),
                "commits_at_target": sum(map(self.at_target, self.acknowledged)),
                "rows_acknowledged": self.rows_acknowledged,
                "first_id": FIRST_ID,
                "refused": len(self.refused),
                "retried": self.retried,
                "longest_wait_ms": self.longest_wait_ms,
                "lost": self.lost,
                "doubled": self.doubled,
            },
            "enable": self.there.as_document(),
            "disable": self.back.as_document(),
            "versions": self.versions,
            "rows": self.rows,
            "clients": [asdict(sight) for sight in self.sights],
            "checks": [asdict(check) for check in self.checks],
            "duration_ms": self.ended_ms - self.began_ms,
        }

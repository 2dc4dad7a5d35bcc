"""The result of a command that changes a redirect."""

from __future__ import annotations

from dataclasses import dataclass

from lakeferry.redirect.states import RedirectState


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a procedure. ``version`` is the source's version of the last transition."""

    state: RedirectState
    source: str
    target: str | None
    version: int | None
    changed: bool
    files_copied: int = 0
    bytes_copied: int = 0
    blocked_ms: int | None = None
    frozen: bool = False
    """Whether the table is read-only without a target."""
    abandoned: bool = False
    """Whether the redirect ended without its target."""
    lost_versions: int | None = None
    """How many versions of an abandoned target the source lacks, if known."""
    kept: tuple[str, ...] = ()
    """Files that were left where the table was deleted, because they aren't its own."""
    by_store_bytes: int = 0
    """How many of the copied bytes the stores copied themselves."""

    def as_document(self) -> dict[str, object]:
        """Return the JSON document of the commands that change a redirect."""
        lost = {"lost_versions": self.lost_versions} if self.abandoned else {}
        return {
            "state": self.state.value,
            "frozen": self.frozen,
            "source": self.source,
            "target": self.target,
            "version": self.version,
            "files_copied": self.files_copied,
            "bytes_copied": self.bytes_copied,
            "bytes_copied_by_store": self.by_store_bytes,
            "blocked_ms": self.blocked_ms,
            "kept": list(self.kept),
            "changed": self.changed,
            **lost,
        }

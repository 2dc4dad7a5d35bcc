"""The result of a command that changes a redirect."""

from __future__ import annotations

from dataclasses import dataclass

from lakeferry.engine import Compared
from lakeferry.readable import Facts, counted, size
from lakeferry.redirect.states import RedirectState

_KEPT_SHOWN = 5


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
    compared: Compared | None = None
    """What was read at both ends, if that was to be done."""

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
            "files_compared": None if self.compared is None else self.compared.objects,
            "bytes_compared": None if self.compared is None else self.compared.bytes,
            "blocked_ms": self.blocked_ms,
            "kept": list(self.kept),
            "changed": self.changed,
            **lost,
        }

    @property
    def shown_state(self) -> str:
        """The state as people read it."""
        return "FROZEN" if self.frozen else self.state.value

    def facts(self) -> Facts:
        """Return what people are told, by name."""
        facts: Facts = [
            ("source", self.source),
            ("state", self.shown_state),
            ("target", self.target),
            ("version", self.version),
        ]
        if self.files_copied:
            copied = f"{counted(self.files_copied, 'file')}, {size(self.bytes_copied)}"
            facts.append(("copied", copied))
            if self.by_store_bytes:
                facts.append(("copied by the store", size(self.by_store_bytes)))
        if self.compared is not None:
            read = f"{counted(self.compared.objects, 'file')}, {size(self.compared.bytes)}"
            facts.append(("read at both ends, equal", read))
        if self.abandoned:
            lost = self.lost_versions
            facts.append(("lost versions", "unknown" if lost is None else lost))
        if self.blocked_ms is not None:
            facts.append(("writers waited", f"{self.blocked_ms} ms"))
        return facts

    def remarks(self) -> list[str]:
        """Return what people are told besides."""
        remarks = []
        if self.kept:
            shown = ", ".join(self.kept[:_KEPT_SHOWN])
            more = ", …" if len(self.kept) > _KEPT_SHOWN else ""
            files = counted(len(self.kept), "file")
            remarks.append(f"kept {files} that don't belong to the table: {shown}{more}")
        if not self.changed:
            remarks.append("nothing had to be changed")
        return remarks

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.html_tables import facts_table, notebook_view

        return notebook_view("Redirect", facts_table(self.facts()), *self.remarks())

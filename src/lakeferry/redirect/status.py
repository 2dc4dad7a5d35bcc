"""Returns the status of a table's redirect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lakeferry.errors import LakeferryError, NotATable, RedirectSpecInvalid, TableNotFound
from lakeferry.log.replay import TableState as TableState
from lakeferry.readable import Facts, counted, size
from lakeferry.redirect import (
    lineage,
    managed_commits,
    read_entry,
    received_entries,
    redirect_findings,
)
from lakeferry.redirect.enable import unfinished_move as unfinished
from lakeferry.redirect.enable.unfinished_move import Unfinished
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.following_errors import target_missing
from lakeferry.redirect.managed_commits import MissingRequirements
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.target_in_catalog import find_in_catalog
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore


@dataclass(frozen=True, slots=True)
class Status:
    """A redirect as ``redirect status`` shows it. ``target`` is where the table is now."""

    RULE_COLUMNS: ClassVar = ("application", "may commit at the source")

    state: RedirectState
    mode: str | None
    dialect: tuple[str, ...]
    type: str | None
    spec: dict[str, Any]
    rules: tuple[Rule, ...]
    target: str | None
    source_version: int
    target_version: int | None
    data: str | None = None
    warnings: tuple[str, ...] = ()
    frozen: bool = False
    """Whether the table is read-only without a target."""
    unfinished: Unfinished | None = None
    """A move that was broken off before ENABLING."""
    name: str | None = None
    """The target's name in its catalog, as ``sql:cat.schema.t``."""
    lacking: MissingRequirements | None = None
    """What a managed target lacks of its catalog's requirements. Until the table has moved there,
    what the source lacks, which the move adds at the target."""
    managed: bool = False
    """Whether the target's catalog owns the table that a move makes, or has made, there."""

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``redirect status``."""
        return {
            "state": self.state.value,
            "frozen": self.frozen,
            "mode": self.mode,
            "dialect": list(self.dialect),
            "type": self.type,
            "spec": self.spec,
            "rules": [rule.as_document() for rule in self.rules],
            "target": self.target,
            "name": self.name,
            "source_version": self.source_version,
            "target_version": self.target_version,
            "data": self.data,
            "unfinished": self.unfinished.as_document() if self.unfinished else None,
            "lacking": self.lacking.as_document() if self.lacking else None,
            "warnings": list(self.warnings),
        }

    @property
    def shown_state(self) -> str:
        """The state as people read it."""
        return "FROZEN" if self.frozen else self.state.value

    def facts(self) -> Facts:
        """Return what people are told, by name."""
        facts: Facts = [("state", self.shown_state)]
        if self.mode is not None:
            facts += [("mode", self.mode), ("dialect", ", ".join(self.dialect))]
            facts.append(("type", self.type))
            if self.name is None:
                facts.append(("target", self.target))
            else:
                facts += [("target", self.name), ("location of the target", self.target)]
        if (left := self.unfinished) is not None:
            ended = "is being cancelled" if left.cancelled else "was interrupted"
            copied = "unknown"
            if left.files_copied is not None and left.bytes_copied is not None:
                copied = f"{counted(left.files_copied, 'file')}, {size(left.bytes_copied)}"
            facts += [
                ("unfinished", f"a move to {left.target} {ended}"),
                ("mode", left.mode),
                ("copied so far", copied),
            ]
        if self.lacking is not None and self.target_version is None:
            facts.append(("the move adds", str(self.lacking)))
        facts.append(("version of the source", self.source_version))
        if self.target_version is not None:
            facts.append(("version of the target", self.target_version))
        return facts

    def rule_rows(self) -> list[tuple[str, str]]:
        """Return who may commit what at the source."""
        return [(rule.app_name or "everybody", ", ".join(rule.operations)) for rule in self.rules]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.html_tables import facts_table, first_rows, notebook_view, warning_list

        resume = "redirect_resume() continues the move, redirect_cancel() undoes it"
        return notebook_view(
            "Redirect",
            facts_table(self.facts()),
            *([resume] if self.unfinished is not None else []),
            first_rows(self.RULE_COLUMNS, self.rule_rows(), len(self.rules), "rule", title="Rules"),
            warning_list(self.warnings),
        )


def status(setting: Setting, source_uri: str) -> Status:
    """Return the state of the redirect of the table at ``source_uri``."""
    source = setting.log(source_uri).keeping_reads()
    state = source.state()
    try:
        redirect = read_entry.read(state.protocol, state.metadata, source_uri)
    except RedirectSpecInvalid as invalid:
        if received_entries.is_received(source.store):
            invalid.remedy = f"remove it: lakeferry redirect disable {shell_safe(source_uri)}"
        raise
    if redirect is None:
        read_entry.check_no_stray(state.protocol, state.metadata, source_uri)
        found, managed, odd = unfinished.describe_unfinished_move(setting, source.store)
        return Status(
            RedirectState.NORMAL,
            *(None, (), None, {}, (), None, state.version, None),
            warnings=odd,
            unfinished=found,
            lacking=_lacking(state, managed),
        )
    warnings = []
    name, lacking = None, None
    if redirect.doubled:
        warnings.append("the table has redirects of both modes; this is the reader-writer one")
    if received_entries.counts(source.store, redirect):
        place, name, version, odd, lacking = _target(setting, redirect, source, state)
    else:
        # The entry's target doesn't belong to this table, so it isn't read.
        place, version, odd = (
            str(redirect.target or "") or None,
            None,
            (received_entries.NOT_FOLLOWED,),
        )
    return Status(
        redirect.state,
        redirect.mode.value,
        tuple(dialect.value for dialect in redirect.dialects),
        redirect.kind.value,
        redirect.target.spec() if redirect.target else {},
        redirect.rules,
        place,
        state.version,
        version,
        redirect.journal.data.value if redirect.journal else None,
        (*warnings, *odd),
        redirect.is_frozen,
        name=name,
        lacking=lacking,
        managed=redirect.journal is not None and redirect.journal.managed is not None,
    )


def _lacking(state: TableState, managed: ManagedTarget | None) -> MissingRequirements | None:
    """Return what a table lacks of what a catalog requires, if it is to be managed."""
    if managed is None:
        return None
    return managed_commits.missing_requirements(state.protocol, state.metadata, managed)


def _required(redirect: Redirect, target: DeltaLog) -> ManagedTarget | None:
    """Return what the catalog of a target requires, if it manages the table."""
    if redirect.journal is not None and redirect.journal.managed is not None:
        return redirect.journal.managed
    store = target.store
    if not isinstance(store, ManagedStore) or not store.asks_catalog:
        return None
    return managed_commits.documented_requirements(store.catalog.table_id)


_Target = tuple[str | None, str | None, int | None, tuple[str, ...], MissingRequirements | None]


def _target(setting: Setting, redirect: Redirect, source: DeltaLog, state: TableState) -> _Target:
    """Return where the target is, its name and newest version, what is odd, and what it lacks.

    As far as that can be found out.
    """
    target = redirect.target
    if target is None:
        return None, None, None, (), None
    moved = redirect.journal.managed if redirect.journal is not None else None
    lacking = _lacking(state, moved) if redirect.state is RedirectState.ENABLING else None
    place = target.location
    name = str(target) if target.kind.catalog is not None else None
    try:
        if (
            place is None
            and redirect.state is RedirectState.ENABLING
            and redirect.journal is not None
        ):
            place = redirect.journal.location
        if place is None:
            known = find_in_catalog(
                setting.catalog, redirect, source.store.uri, setting.grant, finds_name=True
            )
            place, name = known.location, f"{target.kind.catalog}:{known.name}"
        log = setting.log(place).keeping_reads()
        there = log.state()
        lineage.check_lineage(redirect, source.store.uri, state.metadata.id, log)
        odd: list[str] = []
        if redirect.state is RedirectState.READY:
            found = redirect_findings.about_lock(redirect, state, there, place, source)
            odd += (sentence for _, sentence in found)
            lacking = _lacking(there, _required(redirect, log))
            if lacking is not None:
                # 'resume' writes nothing to a table that was there before.
                own = [source.store.uri] if moved is not None else []
                shown = (name or str(target)).partition(":")[2]
                odd.append(redirect_findings.lacking_sentence(shown, lacking, own))
        return place, name, there.version, tuple(odd), lacking
    except LakeferryError as failed:
        # A target that isn't there yet, or any more: the source's own state is told all the same.
        if redirect.state is RedirectState.ENABLING:
            return place, name, None, (), lacking
        if isinstance(failed, TableNotFound | NotATable):
            failed = target_missing(source.store.uri, place or str(target), failed)
        why = f"{failed}; {failed.remedy}" if failed.remedy else str(failed)
        return place, name, None, (why,), None

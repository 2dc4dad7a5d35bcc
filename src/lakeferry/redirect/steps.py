"""The steps of a procedure, as a dry run prints them.

A procedure reports each step when it does it (:attr:`Setting.step
<lakeferry.redirect.redirect_context.Setting.step>`). Only a dry run listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakeferry.redirect.states import RedirectState


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class RedirectStep:
    """One step: what is done, and the values that the dry run prints with it."""

    op: str
    values: Mapping[str, Any]
    counted: Callable[[], Mapping[str, Any]] = _nothing
    """Returns the values that are expensive to compute; only a dry run calls it."""

    def as_document(self) -> dict[str, Any]:
        """Return the step as ``--dry-run --json`` prints it."""
        return {"op": self.op, **self.values, **self.counted()}


def commit_step(table: str, version: int, state: RedirectState, **more: Any) -> RedirectStep:
    """Return the step of a commit that takes a table to a state."""
    return RedirectStep(
        "commit", {"table": table, "version": version, "state": state.value, **more}
    )


def commit_rules(table: str, version: int, rules: Sequence[object]) -> RedirectStep:
    """Return the step of a commit with other no-redirect rules."""
    return commit_step(table, version, RedirectState.READY, rules=[str(rule) for rule in rules])


def commit_changes(table: str, version: int) -> RedirectStep:
    """Return the step of the one commit that brings the net change home."""
    return RedirectStep("commit", {"table": table, "version": version, "state": "SYNC"})


def checkpoint(table: str, version: int) -> RedirectStep:
    """Return the step of a checkpoint."""
    return RedirectStep("checkpoint", {"table": table, "version": version})


def copy_data(source: str, target: str, counted: Callable[[], Mapping[str, Any]]) -> RedirectStep:
    """Return the step of copying a table's files; ``counted`` gives ``files`` and ``bytes``."""
    return RedirectStep("copy_data", {"from": source, "to": target}, counted)


def copy_log_step(
    source: str,
    target: str,
    files: int,
    counted: Callable[[], Mapping[str, Any]],
    *,
    rewrite: bool,
) -> RedirectStep:
    """Return the step of copying a table's log, with other paths in it if ``rewrite``."""
    values = {"from": source, "to": target, "files": files, "rewrite": rewrite}
    return RedirectStep("copy_log", values, counted)


def copy_commits(source: str, target: str, first: int, last: int) -> RedirectStep:
    """Return the step of copying commits under their own numbers."""
    values = {"from": source, "to": target, "from_version": first, "to_version": last}
    return RedirectStep("copy_commits", values)


def copy_missing(source: str, target: str, files: int) -> RedirectStep:
    """Return the step of copying files back that the target of the copy has lost."""
    return RedirectStep("copy_missing", {"from": source, "to": target, "files": files})


def copy_step(
    op: str, source: str, target: str, counted: Callable[[], Mapping[str, Any]] = _nothing
) -> RedirectStep:
    """Return the step of a copy whose numbers may be unknown: ``copy_rest``, ``copy_changes``."""
    return RedirectStep(op, {"from": source, "to": target}, counted)


def compare(a: str, b: str) -> RedirectStep:
    """Return the step of comparing two tables."""
    return RedirectStep("compare", {"a": a, "b": b})


def at(op: str, table: str) -> RedirectStep:
    """Return a step that needs only a place.

    ``claim``, ``publish``, ``clear``, ``delete``, ``delete_copies``, ``forget`` or
    ``set_properties``.
    """
    return RedirectStep(op, {"table": table})


def name(op: str, named: object, table: str) -> RedirectStep:
    """Return the step of a target's name in a catalog: ``register`` or ``unregister``."""
    return RedirectStep(op, {"name": str(named), "table": table})


def create_managed(
    named: object, table: str, features: Sequence[str], properties: Mapping[str, str]
) -> RedirectStep:
    """Return the step of creating a managed table, with what it gets that the source lacks."""
    values = {"name": str(named), "table": table}
    added = {"features": list(features), "properties": dict(properties)}
    return RedirectStep("create", {**values, **added})


def abandon_step(target: object, lost_versions: int | None) -> RedirectStep:
    """Return the step of giving a target up."""
    return RedirectStep("abandon", {"table": str(target), "lost_versions": lost_versions})


def add_features(
    table: str, features: Sequence[str], clients: Sequence[Mapping[str, Any]]
) -> RedirectStep:
    """Return the step of new features in a table's protocol; ``clients`` don't support them all."""
    values = {"table": table, "features": list(features), "clients": list(clients)}
    return RedirectStep("add_features", values)

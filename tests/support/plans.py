"""What a dry run of each procedure prints, without the API around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakeferry.engines.rehearsed_engine import rehearsed
from lakeferry.redirect import cancel as cancelling
from lakeferry.redirect import freeze as freezing
from lakeferry.redirect import rehearsal, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Mode
from lakeferry.redirect.redirect_context import Setting

Plan = list[dict[str, Any]]


def of(setting: Setting, procedure: Callable[[Setting], object]) -> Plan:
    """Return the steps of a procedure."""
    steps = rehearsal.rehearse(setting, rehearsed, procedure)
    return [step.as_document() for step in steps]


def enable(setting: Setting, request: Request) -> Plan:
    """Return the steps of a move."""
    return of(setting, lambda inside: enabling.enable(inside, request))


def resume(setting: Setting, source: str) -> Plan:
    """Return what is left of what was broken off."""
    return of(setting, lambda inside: resuming.resume(inside, source))


def cancel(setting: Setting, source: str, *, leave_copies: bool = False) -> Plan:
    """Return the steps back to NORMAL."""
    return of(setting, lambda inside: cancelling.cancel(inside, source, leave_copies=leave_copies))


def undo(
    setting: Setting,
    source: str,
    options: WithdrawalOptions = WithdrawalOptions(),  # noqa: B008
) -> Plan:
    """Return the steps of a withdrawal."""
    return of(setting, lambda inside: disabling.disable(inside, source, options))


def freeze(setting: Setting, table: str, mode: Mode) -> Plan:
    """Return the steps of a freeze."""
    return of(setting, lambda inside: freezing.freeze(inside, table, mode))


def thaw(setting: Setting, table: str) -> Plan:
    """Return the steps of a thaw."""
    return of(setting, lambda inside: freezing.thaw(inside, table))

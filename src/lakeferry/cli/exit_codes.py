"""Decides the exit code of an error: 2 for a wrong request, 130 for an interrupt, 1 for others."""

from __future__ import annotations

from lakeferry.errors import Interrupted, InvalidInput, LakeferryError

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


def exit_code(error: LakeferryError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Interrupted):
        return INTERRUPTED
    return WRONG_USAGE if isinstance(error, InvalidInput) else FAILED

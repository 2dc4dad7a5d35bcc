"""Decides which sessions may use the source of a redirect, and what they may commit there.

These are the no-redirect rules of an entry. They count while the redirect is READY.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakeferry.errors import InvalidInput

_VACUUM = ("VACUUM START", "VACUUM END")


@dataclass(frozen=True, slots=True)
class Rule:
    """Applications that stay at the source (all, if none is named), and what they may commit."""

    app_name: str | None
    operations: tuple[str, ...] = ()

    def matches(self, app_name: str | None) -> bool:
        """Return whether the rule applies to sessions with that name."""
        if self.app_name is None:
            return True
        return app_name is not None and app_name.lower() == self.app_name.lower()

    def allows(self, operation: str) -> bool:
        """Return whether the rule allows an operation, by its name in ``commitInfo``."""
        return operation.upper() in {name.upper() for name in self.operations}

    def __str__(self) -> str:
        """Show it as the command line takes it."""
        return f"{self.app_name or ''}:{','.join(self.operations)}"

    def as_document(self) -> dict[str, Any]:
        """Return the rule as ``redirect status`` shows it."""
        return {"app_name": self.app_name, "operations": list(self.operations)}


def matching_rule(rules: Iterable[Rule], app_name: str | None) -> Rule | None:
    """Return the rule that applies to a session; a rule that names its app comes first."""
    matching = [rule for rule in rules if rule.matches(app_name)]
    return min(matching, key=lambda rule: rule.app_name is None, default=None)


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules parsed from ``APP:OP,OP``; without an app a rule applies to all sessions."""
    rules = []
    for text in texts:
        app, colon, operations = text.rpartition(":")
        if not colon:
            raise InvalidInput(
                f"{text!r} isn't a rule", remedy="write APP:OPERATION,OPERATION or :OPERATION"
            )
        names = [name.strip() for name in operations.split(",") if name.strip()]
        # VACUUM makes two commits, each with a name of its own.
        spread = [
            each for name in names for each in (_VACUUM if name.upper() == "VACUUM" else (name,))
        ]
        rules.append(Rule(app.strip() or None, tuple(spread)))
    return tuple(rules)

"""Makes the structs of one dialect from those of the other, by a table.

A struct is written once, with the names of the reference implementation. :func:`respelled` makes
the struct of the other dialect from a table: camel case, other names, optional members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lakeferry.errors import InvalidInput


class SpelledPart(Struct):
    """A message, or a part of one."""

    unsaid: ClassVar[Collection[str]] = ()
    """Members that the dialect doesn't have."""
    required: ClassVar[Collection[str]] = ()
    """Members that the dialect requires, and a value may lack."""

    @classmethod
    def _said(cls, name: str, value: Any) -> Any:
        """Return the value of a member that may be absent."""
        if value is None and name in cls.required:
            raise InvalidInput(
                f"a message can't be sent without its {name}",
                cause="this dialect requires it, but its value is unknown",
            )
        return UNSET if value is None or name in cls.unsaid else value


@dataclass(frozen=True, slots=True)
class Respelling:
    """How the other dialect's struct differs, besides the case of its names."""

    names: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Members that may be missing, and their defaults."""
    unsaid: Collection[str] = ()
    required: Collection[str] = ()


def respelled(
    struct: type[SpelledPart],
    changes: Mapping[type[Any], Respelling],
    known: dict[type[Any], type[Any]],
) -> type[Any]:
    """Return the other dialect's struct; ``known`` has the structs that were made before."""
    if struct in known:
        return known[struct]
    change = changes.get(struct, Respelling())
    parts = {name: respelled(part, changes, known) for name, part in parts_of(struct).items()}
    hints = get_type_hints(struct, include_extras=True)
    members: list[Any] = []
    for member in msgspec.structs.fields(struct):
        name, kind = member.name, hints[member.name]
        if name in parts:
            kind = _of_part(kind, parts[name])
        default = change.optional.get(name, member.default)
        if default is msgspec.NODEFAULT or name in change.required:
            members.append((name, kind))
        else:
            members.append((name, kind | UnsetType if default is UNSET else kind, default))
    known[struct] = msgspec.defstruct(
        f"Respelled{struct.__name__}",
        members,
        bases=(struct,),
        rename=lambda name: change.names.get(name, _camel(name)),
        omit_defaults=True,
        kw_only=True,
        namespace={"unsaid": change.unsaid, "required": change.required},
    )
    return known[struct]


def _of_part(hint: Any, part: type[Any]) -> Any:
    """Return a member's type with another struct in it: a list of it, or one that may be absent."""
    if get_origin(hint) is list:
        return list[part]  # type: ignore[valid-type]
    others = [kind for kind in get_args(hint) if kind in (UnsetType, type(None))]
    return reduce(or_, others, part)


@cache
def parts_of(struct: type[SpelledPart]) -> dict[str, Any]:
    """Return the structs of a struct's members, in its own dialect."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(struct).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and issubclass(kind, SpelledPart):
                found[name] = kind
    return found


def given(value: Any) -> Any:
    """Return the value of a member, or ``None`` if it is missing."""
    return None if value is UNSET else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)

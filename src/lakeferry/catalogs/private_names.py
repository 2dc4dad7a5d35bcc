"""The names of managed tables between the rename and the drop.

A table gets such a name just before it is dropped (:meth:`.unity_delta.UnityDelta.delete`). If the
process ends in between, the table keeps it, and is found by the name that it had.
"""

from __future__ import annotations

import hashlib
import re
import uuid

from lakeferry.catalogs.managed_tables import PRIVATE_LEAD

DROP_LEAD = f"{PRIVATE_LEAD}drop_"
_LONGEST = 255
"""A table's name may have as many characters in Unity Catalog."""
_DIGEST = 32
_ROOM = _LONGEST - len(DROP_LEAD) - len(uuid.UUID(int=0).hex) - 1


def to_drop(table: str) -> str:
    """Return a new name for a table that is to be dropped; nobody else gives it to a table.

    It ends in the name that the table had. One that is too long is cut, and its digest added.
    """
    return f"{DROP_LEAD}{uuid.uuid4().hex}_{_ending(table)}"


def is_of(private: str, table: str) -> bool:
    """Return whether a table of that name was renamed to ``private`` to be dropped."""
    ending = re.escape(_ending(table))
    return re.fullmatch(f"{DROP_LEAD}[0-9a-f]{{32}}_{ending}", private) is not None


def _ending(table: str) -> str:
    if len(table) <= _ROOM:
        return table
    digest = hashlib.sha256(table.encode()).hexdigest()[:_DIGEST]
    return f"{table[: _ROOM - _DIGEST - 1]}-{digest}"


def after_broken_drop(private: str, name: str, table_id: str) -> str:
    """Return the commands that end a drop, or give the table its name again."""
    return (
        f"the table may be called {private} now: 'lakeferry catalog remove unity:{table_id} --yes' "
        f"drops it, 'lakeferry catalog rename unity:{private} {name}' keeps it"
    )

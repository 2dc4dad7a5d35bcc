"""The names of managed tables between the rename and the drop.

A table gets such a name just before it is dropped (:meth:`.unity_delta.UnityDelta.delete`). If the
process ends in between, the table keeps it, and is found by the name that it had.
"""

from __future__ import annotations

import re
import uuid

from lakeferry.catalogs.managed_tables import PRIVATE_LEAD

DROP_LEAD = f"{PRIVATE_LEAD}drop_"
_LONGEST = 255
"""A table's name may have as many characters in Unity Catalog."""
_ROOM = _LONGEST - len(DROP_LEAD) - len(uuid.UUID(int=0).hex) - 1


def to_drop(table: str) -> str:
    """Return a new name for a table that is to be dropped; nobody else gives it to a table.

    It ends in the name that the table had, unless that is too long.
    """
    lead = f"{DROP_LEAD}{uuid.uuid4().hex}"
    return f"{lead}_{table}" if len(table) <= _ROOM else lead


def is_of(private: str, table: str) -> bool:
    """Return whether a table of that name was renamed to ``private`` to be dropped."""
    return re.fullmatch(f"{DROP_LEAD}[0-9a-f]{{32}}_{re.escape(table)}", private) is not None


def after_broken_drop(private: str, name: str, table_id: str) -> str:
    """Return the commands that end a drop, or give the table its name again."""
    return (
        f"the table may be called {private} now: 'lakeferry catalog remove unity:{table_id} --yes' "
        f"drops it, 'lakeferry catalog rename unity:{private} {name}' keeps it"
    )

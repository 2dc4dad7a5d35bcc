"""What readers and writers know of the table that they were told about.

A path may come as an option, and the format before it. So they note both: PySpark keeps them only
in the JVM. One that was made before the client was installed noted nothing, and its JVM's object is
looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakeferry.spark.jvm_refusals import JVM_SAYS_NO

_NOTES = "_lakeferry_notes"


def begin_notes(of: Any) -> None:
    """Note that nothing was said yet to a new reader or writer."""
    vars(of)[_NOTES] = {}


def notes_of(of: Any) -> dict[str, str]:
    """Return the ``format`` and the ``path`` that a reader or writer was given, to be changed."""
    notes: dict[str, str] | None = vars(of).get(_NOTES)
    if notes is None:
        notes = vars(of)[_NOTES] = _known_to_jvm(of)
    return notes


def note_options(of: Any, options: Mapping[str, Any]) -> None:
    """Note the path among some options."""
    for key, value in options.items():
        if key.lower() == "path":
            notes_of(of)["path"] = str(value)


def _known_to_jvm(of: Any) -> dict[str, str]:
    """Return the same from the fields of the JVM's object, which aren't public."""
    java = vars(of).get("_jreader") or vars(of).get("_jwrite")
    if java is None:
        return {}
    found = {}
    try:
        source, options = _field(java, "source"), _field(java, "extraOptions")
        if isinstance(source, str):
            found["format"] = source
        path = None if options is None else options.get("path")
        if path is not None and path.isDefined():
            found["path"] = str(path.get())
    except JVM_SAYS_NO:
        return found
    return found


def _field(java: Any, name: str) -> Any:
    """Return the value of a field that a class or one it extends declares."""
    kind = java.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if field.getName().rpartition("$")[2] == name:
                field.setAccessible(True)
                return field.get(java)
        kind = kind.getSuperclass()
    return None

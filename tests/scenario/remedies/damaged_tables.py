"""Remedies for damaged tables, which their owner or the engine that wrote them has to mend."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON

_OPENED = "it is raised by lakeferry.open, and the table's owner has to mend the log"
_OTHER_ENGINE = "another engine has to write to the table"

NEEDS_A_PERSON.update(
    {
        "dataset/__init__.py: restore the commit or checkpoint with the table's metaData from a "
        "copy": _OPENED,
        "dataset/__init__.py: write the file's rows anew with the right value, and remove the "
        "file": _OPENED,
        "deletion_vectors.py: read an older version, or have the engine that wrote it rewrite "
        "the file": _OTHER_ENGINE,
        "deletion_vectors.py: restore the commit or checkpoint that has it from a copy": (_OPENED),
        "schema.py: restore the commit or checkpoint with the table's metaData from a copy": (
            _OPENED
        ),
        "schema.py: write to it with an engine that sets the schema, or restore its metaData": (
            _OTHER_ENGINE
        ),
        "put_commit.py: set the property delta.enableInCommitTimestamps to false with the engine "
        "that wrote that commit": _OTHER_ENGINE,
        "data_files.py: read an older version, or restore the vector or the commit from a "
        "copy": _OPENED,
        "data_files.py: restore the commit or checkpoint that has it from a copy": _OPENED,
        "version_blocks.py: rewrite that file under another name, with OPTIMIZE for "
        "example": _OTHER_ENGINE,
    }
)

"""What a procedure does when it has read its copies at both ends (``--verify full``).

A copy with other bytes than its original stops the procedure, and the next run replaces it. Nothing
is deleted for that reason: a process may be paused before it deletes, and another one may have
copied the object again and opened the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakeferry.engine import Compared
from lakeferry.errors import HashMismatch, InvalidInput
from lakeferry.log.rewrite import Rewrite
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table.live_files import uri_of

_SHOWN = 3


def check_copies(
    setting: Setting, compared: Compared, source: str, target: str, rename: Rewrite
) -> None:
    """Refuse copies that differ from their originals; warn of what couldn't be compared.

    ``source`` and ``target`` are the places that were copied from and to. The caller adds the
    remedy to the error, which has the URI of such a copy.
    """

    def copies(paths: Sequence[str]) -> list[str]:
        return [uri_of(target, new) for new in rename(pa.array(paths, pa.string())).to_pylist()]

    if compared.unequal_count:
        first, *_ = wrong = copies(compared.unequal)
        raise HashMismatch(
            f"{compared.unequal_count} copies at {target} differ from the files at {source}",
            cause=f"they were read at both ends and don't have the same bytes: {_some(wrong)}",
            path=compared.unequal[0],
            uri=first,
            count=compared.unequal_count,
        )
    if compared.replaced_count:
        setting.warn(
            f"{compared.replaced_count} copies of an earlier run differed from the files at "
            f"{source}, and were copied again: {_some(copies(compared.replaced))}"
        )
    if compared.unread_count:
        setting.warn(
            f"{compared.unread_count} copies couldn't be compared, because {source} doesn't have "
            f"the files any more: {_some(copies(compared.unread))}"
        )


def _some(uris: Sequence[str]) -> str:
    more = ", …" if len(uris) > _SHOWN else ""
    return ", ".join(uris[:_SHOWN]) + more


def chosen(wanted: bool | None, begun: bool, source: str) -> bool:
    """Return whether to compare, in a procedure that began with ``begun``.

    ``wanted`` is what the user says now, ``None`` if nothing. Less than at the beginning is
    refused: what an earlier run has copied wasn't compared yet.
    """
    if begun and wanted is False:
        raise InvalidInput(
            f"the copies of {source} can't be verified by the store alone any more",
            cause="the interrupted command was started with --verify full, and its copies may not "
            "have been compared yet",
            remedy="leave out --verify: the command then reads both ends, as before",
            location=source,
        )
    return begun or bool(wanted)

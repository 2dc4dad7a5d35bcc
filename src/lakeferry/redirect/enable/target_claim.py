"""The claim: the file that reserves a target for one move.

A move claims its place before it copies anything there, and checks the claim before each
step. A place that isn't empty can't be claimed, unless an unfinished move of the same table
left its copies there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from lakeferry.errors import LakeferryError, ObjectNotFound, RedirectTargetNotEmpty
from lakeferry.log import paths
from lakeferry.redirect import read_entry
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog

CLAIM_FILE = paths.MOVE_CLAIM


@dataclass(frozen=True, slots=True)
class Claim:
    """Reserves a place for one move: which table moves there, and how.

    A move of the same table in the same way may take the place over. The earlier process
    then finds a claim that isn't its own, and can't rely on its copies any more.
    ``cancelled``: the copies are being deleted. ``begun_ms``: when the place was first claimed, if
    this claim has replaced another one; see :func:`claimed_since`.
    """

    move_id: str
    source: str
    table_id: str
    data: Data
    cancelled: bool = False
    begun_ms: int | None = field(default=None, compare=False)

    def is_of(self, other: Claim) -> bool:
        """Return whether two claims are of moves of the same table."""
        return self.table_id == other.table_id and same_place(self.source, other.source)


_CLAIM_DECODER = msgspec.json.Decoder(Claim)


def claim(store: Store, wanted: Claim) -> bool:
    """Claim a place; return whether an unfinished move of the same table left copies there."""
    found = check_place_free(store, wanted)
    if found is None and take_claim(store, wanted):
        try:
            # Between the first look and our claim another move may have come and gone.
            _check_empty(store)
        except RedirectTargetNotEmpty:
            store.delete_many([CLAIM_FILE])
            raise
        return False
    found = found or check_place_free(store, wanted)
    replace_claim(store, wanted)
    return found is not None and not found.cancelled


def check_place_free(store: Store, wanted: Claim) -> Claim | None:
    """Return the claim of an unfinished move of the same table, or ``None`` for a free place.

    Refuses a place that is used otherwise.
    """
    found = read_claim(store)
    if found is None:
        _check_empty(store)
        return None
    if continues(found, wanted):
        return found
    if _is_closed(store):
        raise _closed(store.uri)
    if found.is_of(wanted):
        why = f"a move with --data {found.data.value} has begun there"
    else:
        why = f"a move of {found.source} has begun there"
    raise RedirectTargetNotEmpty(
        f"{store.uri} isn't free",
        cause=why,
        remedy=f"'lakeferry redirect status {shell_safe(found.source)}' shows that move; "
        f"'lakeferry redirect cancel {shell_safe(found.source)}' undoes it and frees the "
        "place; or choose another target",
        target=store.uri,
    )


def continues(found: Claim, wanted: Claim) -> bool:
    """Return whether a move may reuse the copies of another one.

    Another table or another ``--data`` would write other bytes under the same names.
    """
    return found.is_of(wanted) and (found.data is wanted.data or found.cancelled)


def _check_empty(store: Store) -> None:
    others = (entry.path for entry in store.list("") if not entry.path.startswith(paths.OWN_DIR))
    occupied = next(others, None)
    if occupied is not None:
        if _is_closed(store):
            raise _closed(store.uri)
        raise not_free(store.uri, f"{occupied} is there")


def _is_closed(store: Store) -> bool:
    """Return whether the table at a place is a closed target."""
    try:
        state = DeltaLog(store).state()
        lock = read_entry.read(state.protocol, state.metadata, store.uri)
    except LakeferryError:
        return False
    return lock is not None and lock.state is RedirectState.DROPPING and lock.is_target(store.uri)


def is_place_claimed(store: Store, wanted: Claim) -> bool:
    """Return whether a place still has exactly that claim."""
    return read_claim(store) == wanted


def check_claimed(store: Store, wanted: Claim) -> None:
    """Refuse to go on if a place doesn't have that claim any more."""
    if not is_place_claimed(store, wanted):
        raise not_free(store.uri, "another move has come or gone there meanwhile")


def take_claim(store: Store, wanted: Claim) -> bool:
    """Claim a place in order to clean it up; return ``False`` if another process has it."""
    return store.put_if_absent(CLAIM_FILE, msgspec.json.encode(wanted)) or is_place_claimed(
        store, wanted
    )


def replace_claim(store: Store, wanted: Claim) -> None:
    """Replace any claim at a place. Holders of a claim therefore check it before each step."""
    begun = replace(wanted, begun_ms=claimed_since(store))
    store.put(CLAIM_FILE, msgspec.json.encode(begun))


def claimed_since(store: Store) -> int | None:
    """Return when a place was first claimed, by its store's clock; ``None`` if it isn't claimed.

    A move that is resumed or cancelled replaces the claim, but not this time.
    """
    found = read_claim(store)
    if found is None or found.begun_ms is not None:
        return found.begun_ms if found else None
    try:
        return store.head(CLAIM_FILE).modified_ms
    except ObjectNotFound:
        return None


def revoke_claim(store: Store, wanted: Claim) -> Claim:
    """Mark a place as being cleaned up; return the cancelled claim that says so."""
    revoked = replace(wanted, cancelled=True)
    replace_claim(store, revoked)
    return revoked


def release(store: Store, wanted: Claim) -> None:
    """Delete a claim, unless another process has replaced it."""
    if is_place_claimed(store, wanted):
        store.delete_many([CLAIM_FILE])


def read_claim(store: Store) -> Claim | None:
    """Return the claim at a place, if there is one."""
    try:
        return _CLAIM_DECODER.decode(store.get(CLAIM_FILE))
    except ObjectNotFound:
        return None
    except msgspec.MsgspecError as broken:
        raise not_free(store.uri, f"{CLAIM_FILE} can't be read") from broken


def not_free(uri: str, why: str) -> RedirectTargetNotEmpty:
    """Return the error for a target that is in use."""
    return RedirectTargetNotEmpty(
        f"{uri} isn't free",
        cause=why,
        remedy="choose another target, remove what is there, or use --to-existing for a table "
        "that was copied by other means",
        target=uri,
    )


def _closed(uri: str) -> RedirectTargetNotEmpty:
    return RedirectTargetNotEmpty(
        f"{uri} isn't free",
        cause="a table is there that was closed permanently when its redirect was disabled",
        remedy="give --replace-closed-target to delete that table first (if it was moved from the "
        "same source, all of it is back there), or choose another target",
        target=uri,
        closed=True,
    )

"""Records who has pushed to a dataset last, and when.

``.lakeferry/pushes-done/<folder>.json`` below the root names the token by its public part. A server
writes it after a push. It is for people only: no right and no decision depends on it, and a push
whose record can't be written has succeeded.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.storage import Store
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName

_FOLDER = f"{OWN_FOLDER}/pushes-done/"
_LARGEST_RECORD_BYTES = 4096


class LastPush(msgspec.Struct, frozen=True):
    """A push that has ended. ``token_id`` is what ``token list`` shows of the token."""

    at_ms: int
    token_id: str | None
    head: str
    blocks: int
    objects: int


_LAST_PUSH_DECODER = msgspec.json.Decoder(LastPush)


def record_push(store: Store, folder: DatasetName, push: LastPush) -> None:
    """Record a push that has succeeded; nothing is raised if that fails."""
    with suppress(LakeferryError):
        store.put(_path(folder), msgspec.json.encode(push))


def last_push(store: Store, folder: DatasetName) -> LastPush | None:
    """Return the last push to a dataset, or ``None`` if none was recorded."""
    with suppress(ObjectNotFound, msgspec.MsgspecError):
        return _LAST_PUSH_DECODER.decode(store.get_range(_path(folder), 0, _LARGEST_RECORD_BYTES))
    return None


def forget_push(store: Store, folder: str) -> None:
    """Delete the record of a dataset that was deleted; nothing is raised if that fails."""
    with suppress(LakeferryError):
        store.delete_many([_path(DatasetName(folder))])


def _path(folder: DatasetName) -> str:
    return f"{_FOLDER}{folder}.json"

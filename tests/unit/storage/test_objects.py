"""Object stores that break the rules that everything relies on, and that don't answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.storage import http_pool, open_store
from lakeferry.storage.objects import ObjectStore
from lakeferry.storage.store import ObjectInfo
from tests.support.servers import free_port

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion


@pytest.fixture
def store() -> ObjectStore:
    found = open_store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(found, ObjectStore)
    return found


def test_a_store_that_lists_out_of_order_is_not_relied_on(store: ObjectStore) -> None:
    page = [ObjectInfo(name, 1, 0) for name in ("b", "a")]
    listed = store._listing._selected(iter([page]), "", b"", None)
    assert next(listed).path == "b"
    with pytest.raises(StorageUnavailable, match="out of order"):
        next(listed)


def test_a_store_without_versions_replaces_nothing(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("x", b"1")
    only = store._only

    def without_versions(meta: ObjectMeta) -> UpdateVersion:
        meta["e_tag"] = meta["version"] = None
        return only(meta)

    monkeypatch.setattr(store, "_only", without_versions)
    with pytest.raises(StorageUnavailable, match="neither an ETag nor a version"):
        store.swap("x", b"1", b"2")
    assert store.get("x") == b"1"


def test_a_store_that_went_away_before_a_part_came_is_named() -> None:
    with pytest.raises(StorageUnavailable, match="the store doesn't answer"):
        http_pool.http_answer("PUT", f"http://127.0.0.1:{free_port()}/b/x", {}, b"1", wait_s=5)

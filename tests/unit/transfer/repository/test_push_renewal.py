"""How the records of running pushes are renewed."""

from __future__ import annotations

import json
import threading

from lakeferry.transfer.repository.push_records import PushRecord
from lakeferry.transfer.repository.push_renewal import Heart
from tests.support.serving import until
from tests.support.stores import DictStore
from tests.unit.server.sessions.test_websocket_sessions import NAME


def test_a_heart_renews_records_and_sees_them_out() -> None:
    store = DictStore()
    record = PushRecord(store, NAME, None, clock=store.clock)
    record.begin([f"{NAME}/data/x"])
    record.grant([f"{NAME}/data/x"])
    # Servers of other tests may still be ending theirs.
    others = set(threading.enumerate())
    heart = Heart(every_s=0.001)
    heart.add(record)

    def note() -> dict[str, object]:
        [path] = [path for path in store.objects if path.endswith("push.json")]
        found: dict[str, object] = json.loads(store.objects[path])
        return found

    until(lambda: int(str(note()["beat"])) > 3)
    heart.remove(record, leave=True)
    until(lambda: note()["state"] == "left")
    heart.stop(10)
    left = set(threading.enumerate()) - others
    assert not [each for each in left if each.name == "pushes"]

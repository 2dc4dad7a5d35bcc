"""What binds a table to its catalog is removed from log files, and nothing else is."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import paths
from lakeferry.log.actions import Protocol
from lakeferry.log.rewrite import remove_catalog, without_catalog
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import Checkpoint, Compact, DeleteRows, Kind
from tests.support.managed_history import MANAGED_PAST, TRACES
from tests.support.stores import DictStore

PAST = MANAGED_PAST.then(DeleteRows(1))


def released(objects: DictStore) -> DictStore:
    """Return a table whose log files are without the catalog."""
    made = DictStore(uri=objects.uri)
    for name in objects.objects:
        data = objects.get(name)
        file = paths.parse(name)
        has_rows = file is not None and file.kind is not paths.LogFileKind.CHECKSUM
        made.put(name, remove_catalog(data, name) if has_rows else data)
    return made


def assert_equal_but_for_the_catalog(there: Store, here: Store) -> None:
    before, after = DeltaLog(there).snapshot(), DeltaLog(here).snapshot()
    lists = before.protocol.reader_features or (), before.protocol.writer_features or ()
    gone = {"catalogManaged", "vacuumProtocolCheck"}
    left = [tuple(name for name in names if name not in gone) for names in lists]
    protocol = after.protocol
    assert [protocol.reader_features, protocol.writer_features] == left
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    configuration = dict(before.metadata.configuration)
    del configuration["io.unitycatalog.tableId"]
    assert after.metadata.configuration == configuration
    assert configuration["owner"] == "ann"
    assert after.metadata.schema_string == before.metadata.schema_string
    assert after.files.equals(before.files)


@pytest.mark.parametrize("kind", [None, *Kind])
def test_a_log_without_the_catalog_is_the_same_table(kind: Kind | None) -> None:
    history = PAST if kind is None else PAST.then(Checkpoint(kind, hint=False))
    objects = history.store("memory://dict")
    if kind is not None:
        # Only the checkpoint says what the table is.
        newest = DeltaLog(objects).listing().newest_version
        objects.delete_many([paths.commit(version) for version in range(newest)])
    copy = released(objects)
    assert_equal_but_for_the_catalog(objects, copy)
    again = released(copy)
    assert {name: again.get(name) for name in again.objects} == {
        name: copy.get(name) for name in copy.objects
    }
    texts = [copy.get(name) for name in copy.objects if name.endswith(".json")]
    assert not any(trace in text for text in texts for trace in TRACES)


def test_a_compacted_log_is_without_it_too() -> None:
    objects = PAST.then(Compact(6)).store("memory://dict")
    [name] = [name for name in objects.objects if "compacted" in name]
    changed = remove_catalog(objects.get(name), name)
    assert changed != objects.get(name)
    assert not any(trace in changed for trace in TRACES)


def test_every_other_byte_stays() -> None:
    protocol = (
        b'{ "protocol" : {"minReaderVersion":3, "readerFeatures": ["a", "catalogManaged"],'
        b' "unknown": 1.50, "minWriterVersion": 7,'
        b' "writerFeatures":["catalogManaged","b","vacuumProtocolCheck"]}}'
    )
    metadata = (
        b'{"metaData":{"id":"x","schemaString":"{\\"catalogManaged\\": 1}","configuration":'
        b'{"a":"catalogManaged","io.unitycatalog.tableId":"1","z":"\\u00fc"},"n":9007199254740993}}'
    )
    others = [
        b'{"commitInfo": {"operationParameters": {"properties": "catalogManaged"}} }\r',
        b"",
        b'{"add": {"path": "a\\u0062", "stats": "{\\"catalogManaged\\":1}"}}',
        b'{"unknown": ["catalogManaged"]}',
        # Without the first one it is the table's own.
        b'{"protocol": {"readerFeatures": ["vacuumProtocolCheck"], "x": "catalogManaged"}}',
        b"no json, but catalogManaged",
    ]
    data = b"\n".join([*others[:1], protocol + b"\r", metadata, *others[1:], b""])
    lines = remove_catalog(data, paths.commit(1)).split(b"\n")
    assert lines[0] == others[0]
    assert lines[1] == (
        b'{"protocol":{"minReaderVersion":3,"readerFeatures":["a"],"unknown":1.50,'
        b'"minWriterVersion":7,"writerFeatures":["b"]}}\r'
    )
    assert b'"configuration":{"a":"catalogManaged","z":"\\u00fc"},"n":9007199254740993}' in lines[2]
    assert b'"schemaString":"{\\"catalogManaged\\": 1}"' in lines[2]
    assert lines[3:] == [*others[1:], b""]


def test_escapes_hide_nothing() -> None:
    line = json.dumps({"protocol": {"readerFeatures": ["catalogManaged"]}}).encode()
    hidden = line.replace(b"protocol", b"\\u0070rotocol").replace(b"cat", b"\\u0063at")
    changed = json.loads(remove_catalog(hidden, paths.commit(1)))
    assert changed == {"protocol": {"readerFeatures": []}}


def test_the_feature_as_a_property_goes_with_it() -> None:
    properties = {"delta.feature.catalogManaged": "supported", "a": "b"}
    line = json.dumps({"metaData": {"configuration": properties}}).encode()
    changed = json.loads(remove_catalog(line, paths.commit(1)))
    assert changed == {"metaData": {"configuration": {"a": "b"}}}


def test_a_broken_checkpoint_is_named() -> None:
    with pytest.raises(CorruptLog) as broken:
        remove_catalog(b"PAR1", "_delta_log/00000000000000000001.checkpoint.parquet")
    assert broken.value.fields["path"] == "_delta_log/00000000000000000001.checkpoint.parquet"


def test_a_protocol_as_a_value() -> None:
    plain = Protocol(3, 7, ("vacuumProtocolCheck",), ("v2Checkpoint", "inCommitTimestamp"))
    assert without_catalog(plain) is plain
    managed = Protocol(3, 7, ("catalogManaged", "v2Checkpoint"), ("v2Checkpoint", "catalogManaged"))
    assert without_catalog(managed) == Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint",))

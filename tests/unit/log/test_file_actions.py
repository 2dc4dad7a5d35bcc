"""File actions in Arrow: checkpoints in schemas of their own."""

from __future__ import annotations

import pyarrow as pa

from lakeferry.log import file_actions


def test_a_checkpoint_that_lacks_fields_and_has_others_is_conformed() -> None:
    kind = pa.struct(
        [
            ("path", pa.large_string()),
            ("size", pa.int32()),
            ("deletionVector", pa.struct([("storageType", pa.string()), ("cardinality", "int32")])),
            ("later", pa.int8()),
        ]
    )
    rows = [
        {"path": "a", "size": 1, "deletionVector": None, "later": 5},
        {"path": "b", "size": 2, "deletionVector": {"storageType": "u", "cardinality": 3}},
    ]
    batch = file_actions.conform(pa.array(rows, kind), file_actions.ADD)
    assert batch.schema.names == [*file_actions.ADD.names, "later"]
    assert batch.schema.field("path").type == pa.string()
    first, second = batch.to_pylist()
    assert (first["size"], first["later"], first["deletionVector"], first["tags"]) == (
        *(1, 5),
        *(None, None),
    )
    assert second["deletionVector"]["cardinality"] == 3
    assert second["deletionVector"]["offset"] is None

"""Files of a table that are outside of its folder: how it is transferred all the same."""

from __future__ import annotations

import deltalake
import pyarrow as pa

from tests.support.remedies import Witness, follows


@follows(
    "named_files.py: copy the table to a place of its own with "
    "'lakeferry redirect enable', and transfer the copy"
)
def a_table_with_files_beside_it_is_copied_and_transferred(witness: Witness) -> None:
    lake, url = witness.lake, f"{witness.server.url}/beside"
    table, copy = lake.uri("t"), lake.uri("copy")
    words = ("--token", witness.token("--scope", "write"))
    deltalake.write_deltalake(lake.folder / "t", pa.table({"id": [1]}))
    (file,) = (lake.folder / "t").glob("*.parquet")
    file.rename(lake.folder / file.name)
    log = lake.folder / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(f'"{file.name}"', f'"../{file.name}"'))
    witness.refused("push", table, url, *words)
    witness.done("redirect", "enable", table, copy)
    witness.done("push", copy, url, *words)
    witness.done("pull", url, lake.uri("back"), *words)
    assert deltalake.DeltaTable(lake.uri("back")).to_pyarrow_table()["id"].to_pylist() == [1]

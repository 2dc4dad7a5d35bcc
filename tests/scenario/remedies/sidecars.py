"""Log files that a checkpoint names and that are gone: what the user does then."""

from __future__ import annotations

from tests.support.history import Append, Checkpoint, History, Kind, Layout
from tests.support.remedies import Witness, follows

PAST = History(Layout(v2_checkpoints=True)).then(Append(3), Checkpoint(Kind.V2_PARQUET), Append(1))


@follows("load.py: try again; if it keeps failing, restore the file from a copy")
def a_sidecar_that_is_gone_is_restored(witness: Witness) -> None:
    table, log = witness.lake.make("t", PAST), witness.lake.folder / "t" / "_delta_log"
    # Without the commits before it, the checkpoint is all there is.
    for version in range(2):
        (log / f"{version:020}.json").unlink()
    sidecar = next((log / "_sidecars").glob("*.parquet"))
    copy = sidecar.read_bytes()
    sidecar.unlink()
    for _ in range(2):
        witness.refused("files", table)
    sidecar.write_bytes(copy)
    witness.done("files", table)

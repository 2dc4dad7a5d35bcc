"""How fast a table's state is rebuilt from its log, against delta-rs in the same run.

* one million live files in a checkpoint, and ten commits after it: a snapshot
  with all live files in Arrow, in time and in memory;
* the same table's protocol and metadata alone, against our own full snapshot;
* ten thousand commits and no checkpoint.

Run it with ``make bench``, or alone: ``python bench/replay.py [RUNS]``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

from support.measure import Bar, child, compare, counted, report

FILES = 1_000_000
COMMITS_AFTER = 10
COMMITS_ONLY = 10_000
SNAPSHOT_TIME = 0.6
SNAPSHOT_MEMORY = 0.9
STATE_TIME = 0.1
COMMITS_TIME = 1.0


def ours_snapshot(table: str) -> Callable[[], object]:
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    return lambda: DeltaLog(open_store(table)).snapshot().files.num_rows


def ours_state(table: str) -> Callable[[], object]:
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    return lambda: DeltaLog(open_store(table)).state().version


def peer_snapshot(table: str) -> Callable[[], object]:
    from deltalake import DeltaTable

    return lambda: DeltaTable(table).get_add_actions().num_rows


def counts(files: int, commits: int) -> dict[str, Counter[str]]:
    """Return what a snapshot and what a state ask of the store, for a table of so many files."""
    from support import logs

    found = {}
    for name, runner in (("snapshot", ours_snapshot), ("state", ours_state)):
        work = runner(str(logs.checkpointed(files, commits)))
        with counted() as calls:
            work()
        found[name] = calls
    return found


def generate(_: str) -> Callable[[], object]:
    """Write the logs if they aren't there: in a child, so that the parent stays small."""
    from support import logs

    return lambda: [
        str(logs.checkpointed(FILES, COMMITS_AFTER)),
        str(logs.commits_only(COMMITS_ONLY)),
    ]


def main() -> int:
    runners = [generate, ours_snapshot, ours_state, peer_snapshot]
    child({runner.__name__: runner for runner in runners})
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    made = compare(__file__, [("generate", "")], 1)["generate"].result
    assert isinstance(made, list)
    huge, many = made
    work = [("ours_snapshot", huge), ("peer_snapshot", huge), ("ours_state", huge)]
    costs = compare(__file__, work, runs)
    ours, peer, state = (costs[name] for name, _ in work)
    tail = compare(__file__, [("ours_snapshot", many), ("peer_snapshot", many)], runs)
    ours_many, peer_many = tail["ours_snapshot"], tail["peer_snapshot"]
    if ours.result != peer.result or ours_many.result != peer_many.result:
        print(f"they disagree: {ours.result} and {peer.result} files", file=sys.stderr)
        return 1
    bars = [
        Bar("snapshot of 1,000,000 files", ours.seconds, peer.seconds, "s", SNAPSHOT_TIME),
        Bar("its peak memory", ours.peak_mib, peer.peak_mib, "MiB", SNAPSHOT_MEMORY),
        Bar("its protocol alone, by ours", state.seconds, ours.seconds, "s", STATE_TIME),
        Bar("10,000 commits", ours_many.seconds, peer_many.seconds, "s", COMMITS_TIME),
    ]
    return report(bars)


if __name__ == "__main__":
    sys.exit(main())

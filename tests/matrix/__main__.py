"""Tries every line of Spark, and writes the table of ``docs/compatibility.md``: ``make matrix``.

``python -m tests.matrix 3.5 4.0`` tries some of them, and the other columns stay. Environments
are made first, in the cache folder. ``python -m tests.matrix wanted 3.5`` prints what a line's
lock is made from, for ``tools/lock.sh``.
"""

from __future__ import annotations

import sys
import tempfile

from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SPARK_LINES, SparkLine
from tests.matrix import environments
from tests.matrix.cells import RESULTS, SOMETHING_BROKEN, read_run
from tests.matrix.page import write_page


def try_line(line: SparkLine) -> bool:
    """Run the suite with a line of Spark, and keep the result; return whether nothing is broken."""
    print(f"== Spark {line.pyspark}", flush=True)
    if not environments.is_there(line):
        print("making its environment", flush=True)
        environments.make(line)
    result = RESULTS / f"{line.pyspark}.json"
    with tempfile.TemporaryDirectory(prefix="lakeferry-matrix-") as folder:
        words = ["-m", "tests.matrix.suite", str(result), folder]
        environments.run_in(line, words, accepts=(0, SOMETHING_BROKEN))
    found = read_run(result)
    for cell in found.cells:
        print(f"{cell.group}, {cell.what}: {cell.outcome.value} {cell.detail}".rstrip())
    return not found.broken


def main(arguments: list[str]) -> int:
    """Return 1 if something is broken."""
    lines = {line.line: line for line in SPARK_LINES}
    if arguments[:1] == ["lines"]:
        print(*(name for name, line in lines.items() if line is not NEWEST_WITH_DELTA))
        return 0
    if arguments[:1] == ["wanted"]:
        print(environments.wanted(lines[arguments[1]]), end="")
        return 0
    chosen = [lines[name] for name in arguments] if arguments else list(SPARK_LINES)
    whole = [try_line(line) for line in chosen]
    write_page()
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

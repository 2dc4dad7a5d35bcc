"""What a user's own type checker says of programs that use the public API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GOOD = """
import lakeferry

table = lakeferry.Table("orders")
print(table.redirect("new", mode="writer-only", rules=["etl:WRITE"]).state)
plan: list[dict[str, object]] = list(table.redirect("new", dry_run=True))
print(table.redirect_disable(remove_target=True).changed, table.redirect_resume().version)
print(table.redirect_cancel().version, table.freeze(mode="reader-writer").state)
print(table.thaw().state, table.drop_feature("deletionVectors").version)
print(table.cleanup(retention="7d").deleted, table.cleanup(dry_run=True).waves)
print(table.export("there", keep=None).location)
print(table.push("http://h/orders", token="t").head, table.pull("http://h/o", force=True).head)
print(lakeferry.gc("root").bytes, lakeferry.create_token("root").upper())
there: bool = lakeferry.revoke_token("root", "id")


async def later() -> None:
    print((await table.async_push("http://h/o", parallel=2)).head)
    print((await table.async_pull("http://h/o")).head, (await lakeferry.async_gc("root")).bytes)
"""
BAD = """
import lakeferry

table = lakeferry.Table("orders")
table.redirect("new", mod="writer-only")
table.redirect("new", unverifed=True, dry_run=True)
table.redirect_disable(remove_traget=True)
table.redirect_resume(engin="local")
table.freeze(modus="writer-only")
table.drop_feature("x", truncate=True)
table.cleanup(retain="7d")
table.export("there", keeps=1)
table.push("http://h/o", tokn="t")
table.pull("http://h/o", forced=True)
lakeferry.gc("root", graze="1h")
lakeferry.create_token("root", scop="read")
lakeferry.serve("root", hots="x")
table.redirect("new").stat
"""


def _errors(program: str, folder: Path) -> list[int]:
    """Return the lines of a program that mypy --strict refuses."""
    file = folder / "program.py"
    file.write_text(program)
    options = ["--strict", "--no-error-summary", "--config-file=", "--cache-dir=cache"]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *options, file.name],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    lines = ended.stdout.splitlines()
    assert not ended.stderr, ended.stderr
    assert all(line.startswith("program.py:") for line in lines), ended.stdout
    return sorted({int(line.split(":")[1]) for line in lines if " error: " in line})


def test_a_right_program_passes_and_each_misspelt_option_does_not(tmp_path: Path) -> None:
    right = GOOD.count("\n")
    wrong = [right + number for number, line in enumerate(BAD.splitlines(), 1) if "(" in line]
    # The first of them only opens the table. One run, for mypy has to read our modules once.
    assert _errors(GOOD + BAD, tmp_path) == wrong[1:]

"""``files``: lists the live files of a version."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from lakeferry import config
from lakeferry.cli import progress, render
from lakeferry.cli.options import (
    TABLE,
    Session,
    command,
    engine_option,
    no_follow_option,
    storage_option,
    version_option,
)
from lakeferry.cli.screen import cells, without_middle
from lakeferry.errors import InvalidInput, LakeferryError, StorageUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("partition", "size", "deleted", "name")
_MARGIN = 11
"""Width of the gaps between columns, or of a column's name in block form."""
_SHORTEST_NAME = 12
"""With less room for names, each file is shown as a block of lines."""


class TimestampType(click.ParamType[int]):
    """Milliseconds since the epoch, or a date and time; without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since the epoch."""
        if isinstance(value, int):
            return value
        if value.removeprefix("-").isdecimal():
            return int(value)
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither milliseconds nor like 2026-01-31T12:00:00Z", param, ctx
            )
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return int(when.timestamp() * 1000)


@command(
    examples=(
        ("lakeferry files ./orders", "the files of the newest version"),
        ("lakeferry files ./orders --version 12 --json", "of version 12, one JSON object per line"),
        ("lakeferry files ./orders --timestamp 2026-01-31", "as of a time (UTC)"),
        ("lakeferry files s3://warehouse/orders --output files.parquet", "for a query engine"),
    )
)
@click.argument("table", type=TABLE)
@version_option
@click.option(
    "--timestamp",
    type=TimestampType(),
    metavar="TIME",
    help="The version that was the newest at that time: milliseconds or ISO 8601.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    metavar="F.parquet",
    help="Write the list to a Parquet file instead; never leaves a partial file.",
)
@no_follow_option
@engine_option
@storage_option
def files(
    session: Session,
    table: str,
    version: int | None,
    timestamp: int | None,
    output: str | None,
    no_follow: bool,
    engine: str | None,
    storage_options: Mapping[str, str],
) -> None:
    """List the live files of TABLE with their sizes, partition values and deletion vectors.

    With --json each file is a line of its own: path (an absolute URI), size,
    partition_values, deletion_vector.
    """
    if version is not None and timestamp is not None:
        raise click.UsageError("--version and --timestamp can't be combined.")
    settings = config.load(storage_options=storage_options, engine=engine)
    opened = session.table(table, settings)
    with progress.watching(session.output) as observer:
        reader = opened.files(
            version,
            timestamp_ms=timestamp,
            follow=not no_follow,
            engine=settings.engine,
            observer=observer,
        )
    if output is not None:
        count = _write_parquet(reader, output)
        if session.output.json:
            session.output.document({"output": output, "num_files": count})
        else:
            session.output.page().line(f"wrote {render.counted(count, 'file')} to {output}")
    elif session.output.json:
        for batch in reader:
            session.output.documents(_documents(batch))
    else:
        shown = opened.shown_name
        if opened.followed is not None:
            shown = opened.followed_name or opened.followed
        _show(session, reader, shown)


def _documents(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield one object for each row; only one batch is in memory at a time."""
    columns = (column.to_pylist() for column in batch.columns)
    for path, size, values, vector in zip(*columns, strict=True):
        yield {
            "path": path,
            "size": size,
            "partition_values": dict(values),
            "deletion_vector": vector,
        }


def _show(session: Session, reader: pa.RecordBatchReader, root: str) -> None:
    """Print a table with totals on a terminal, a line for each file in a pipe."""
    if not sys.stdout.isatty():
        _show_lines(session, reader)
        return
    page = session.output.page()
    page.line(f"Files of {root}")
    number = size_bytes = deleted = 0
    for batch in reader:
        rows = []
        for file in _documents(batch):
            gone = (file["deletion_vector"] or {}).get("cardinality", 0)
            name = unquote(file["path"].removeprefix(f"{root}/"))
            partition = render.text(_values(file["partition_values"]))
            rows.append((partition, render.size(file["size"]), gone, name))
            number, size_bytes, deleted = number + 1, size_bytes + file["size"], deleted + gone
        # Names are cut in the middle here; pipes and --json get them complete.
        taken = _MARGIN + sum(
            max(cells(str(row[index])) for row in [_COLUMNS, *rows]) for index in range(3)
        )
        screen = shutil.get_terminal_size().columns
        room = screen - taken if screen - taken >= _SHORTEST_NAME else screen - _MARGIN
        shown = [(*row[:3], without_middle(row[3].rpartition("/")[2], room)) for row in rows]
        page.table("", _COLUMNS, shown)
    total = f"{render.counted(number, 'file')}, {render.size(size_bytes)}"
    page.line(f"{total}, {render.counted(deleted, 'deleted row')}" if deleted else total)


def _values(values: Mapping[str, str | None]) -> str | None:
    """Return partition values as they stand in a path."""
    shown = (f"{name}={'null' if value is None else value}" for name, value in values.items())
    return ", ".join(shown) or None


def _show_lines(session: Session, reader: pa.RecordBatchReader) -> None:
    """Print a line for each file; widths are fixed, so that nothing waits for the last one."""
    lines = ["size\tdeleted rows\tpartition\tpath\n"]
    for batch in reader:
        for file in _documents(batch):
            deleted = (file["deletion_vector"] or {}).get("cardinality", 0)
            partition = render.text(_values(file["partition_values"]))
            path = render.text(file["path"])
            lines.append(f"{file['size']}\t{deleted}\t{partition}\t{path}\n")
        session.output.text("".join(lines))
        lines = []
    session.output.text("".join(lines))


def _write_parquet(reader: pa.RecordBatchReader, output: str) -> int:
    """Write beside the name, sync, and rename over it; return the number of rows."""
    import pyarrow.parquet as pq

    # If it is a link, its target is replaced, not the link.
    target = Path(output).resolve()
    if "://" in output:
        raise InvalidInput(
            "--output takes a local file", cause=f"{output!r} is a URI", remedy="give a path"
        )
    if target.exists() and not target.is_file():
        # Renaming over a device, as root, would delete the device.
        raise InvalidInput(
            "--output takes a file",
            cause=f"{output} is a folder, a device or a pipe",
            remedy="give the path of a file",
        )
    count = 0
    with _as_ours(target), contextlib.ExitStack() as stack:
        folder = target.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.", suffix=".tmp")
        stack.callback(_remove, name)
        with open(handle, "wb") as stream:  # noqa: PTH123 - the descriptor is all there is
            with pq.ParquetWriter(stream, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
                    count += batch.num_rows
            stream.flush()
            os.fchmod(stream.fileno(), 0o666 & ~_umask())
            os.fsync(stream.fileno())
        os.replace(name, target)
    return count


def _remove(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _as_ours(target: Path) -> Iterator[None]:
    try:
        yield
    except LakeferryError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidInput(
            f"can't write {target}",
            cause=error.strerror,
            remedy="give a file in a folder that is there",
        ) from error
    except OSError as error:
        from lakeferry.storage import rights

        if error.errno in rights.DENIED:
            raise rights.forbidden(target, f"the file {target}", error) from error
        raise StorageUnavailable(
            f"can't write {target}",
            cause=error.strerror or str(error),
            remedy="give a file on another disk, or free some space",
            path=str(target),
        ) from error

"""How fast long listings are, against the same store listed by one request after the other.

* ``s3``: 100,000 objects in versitygw, in 100 partitions and in one folder.
* ``lakefs``: the same in lakeFS.
* ``far``: the partitions again, behind a relay that holds each answer back for 50 ms, as distance
  does.
* ``disk``: the same as files on local disk, against ``find`` and ``sort``; and the memory that it
  takes. Threads don't make it faster, so there is one.

Both servers share two cores with us here, and versitygw walks its folders for each page: without
the relay there is little to be gained. Requests and memory are told. Run it with ``make bench``,
or alone:
``python bench/listing.py [SECTION…] [RUNS]``.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from support import lakes
from support.measure import Bar, child, compare, report

if TYPE_CHECKING:
    from tests.support.servers import S3Bucket

ROOT = Path(__file__).resolve().parents[1]
OBJECTS = 100_000
PARTITIONS = 100
SHAPES = ("partitions", "flat")
LIMITS = {"s3": 0.95, "lakefs": 1.0, "far": 0.4, "disk": 2.5}
DISK_MIB = 64
DELAY_S = 0.05


def ours(argument: str) -> Callable[[], tuple[int, int]]:
    """List as Lakeferry does where a listing may be long."""
    from lakeferry.storage import open_store
    from lakeferry.storage.parallel_listing import list_all

    store = open_store(*json.loads(argument))
    return lambda: (sum(1 for _ in list_all(store)), store.calls["LIST"])


def one_by_one(argument: str) -> Callable[[], tuple[int, int]]:
    """List by one request after the other."""
    from lakeferry.storage import open_store

    store = open_store(*json.loads(argument))
    return lambda: (sum(1 for _ in store.list("")), store.calls["LIST"])


def found(argument: str) -> Callable[[], tuple[int, int]]:
    """List files with their sizes and times by the system's own programs."""
    command = "find . -type f -printf '%P %s %T@\\n' | LC_ALL=C sort | wc -l"
    folder = json.loads(argument)[0]

    def work() -> tuple[int, int]:
        done = subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, check=True)
        return int(done.stdout), 0

    return work


ONE_BY_ONE, FOUND = "one by one", "found"
RUNNERS = {"ours": ours, ONE_BY_ONE: one_by_one, FOUND: found}


def counts(uri: str, shape: str, objects: int) -> tuple[int, int]:
    """Return how many requests each way of listing takes."""
    from lakeferry.storage import open_store

    store = open_store(uri)
    for name in names(shape, objects):
        store.put(name, b"")
    argument = json.dumps([uri, {}])
    return ours(argument)()[1], one_by_one(argument)()[1]


def names(shape: str, objects: int) -> Iterator[str]:
    """Yield the names of a table's files, the same ones each time."""
    seed = random.Random(7)
    for number in range(objects):
        below = f"day=2024-{number % PARTITIONS:04d}/" if shape == "partitions" else ""
        name = uuid.UUID(int=seed.getrandbits(128), version=4)
        yield f"{below}part-00000-{name}-c000.snappy.parquet"


def fill(folder: Path) -> None:
    """Make the objects of both shapes, as files in the bucket's folder."""
    for shape in SHAPES:
        for number, name in enumerate(names(shape, OBJECTS)):
            file = folder / shape / name
            if number < PARTITIONS:
                file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


def bars(
    section: str, places: Mapping[str, str], options: Mapping[str, str], runs: int
) -> list[Bar]:
    """Compare both ways of listing each shape."""
    peer = FOUND if section == "disk" else ONE_BY_ONE
    measured = []
    for shape, uri in places.items():
        argument = json.dumps([uri, dict(options)])
        costs = compare(__file__, [(name, argument) for name in ("ours", peer)], runs)
        mine, other = costs["ours"], costs[peer]
        assert isinstance(mine.result, list)
        assert isinstance(other.result, list)
        assert mine.result[0] == other.result[0] == OBJECTS
        print(
            f"{section}, {shape}: {mine.result[1]} and {other.result[1]} requests, "
            f"{mine.peak_mib:.0f} and {other.peak_mib:.0f} MiB",
            flush=True,
        )
        name = f"{section}: {OBJECTS:,} names, {shape}"
        measured.append(Bar(name, mine.seconds, other.seconds, "s", LIMITS[section]))
        if section == "disk":
            measured.append(Bar(f"{name}, memory", mine.peak_mib, DISK_MIB, "MiB", 1.0))
    return measured


async def _delayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]
) -> None:
    """Carry one connection, and hold back what answers each request."""
    up_reader, up_writer = await asyncio.open_connection(*target)
    asked = asyncio.Event()

    async def ask() -> None:
        while data := await reader.read(1 << 16):
            asked.set()
            up_writer.write(data)

    async def answer() -> None:
        while data := await up_reader.read(1 << 16):
            if asked.is_set():
                asked.clear()
                await asyncio.sleep(DELAY_S)
            writer.write(data)

    with suppress(OSError):
        await asyncio.wait(
            [asyncio.ensure_future(ask()), asyncio.ensure_future(answer())],
            return_when=asyncio.FIRST_COMPLETED,
        )
    writer.close()
    up_writer.close()


@contextmanager
def far(endpoint: str) -> Iterator[str]:
    """Yield the address of a relay to a server."""
    place = urlsplit(endpoint)
    target = (place.hostname or "", place.port or 80)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(lambda r, w: _delayed(r, w, target), "127.0.0.1")
    )
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextmanager
def filled() -> Iterator[tuple[lakes.Lake, S3Bucket]]:
    """Run the servers, with a bucket that has the objects."""
    with tempfile.TemporaryDirectory() as place, lakes.running(Path(place)) as lake:
        bucket = lake.blocks.server.create_bucket("names")
        assert bucket.server.folder is not None
        fill(bucket.server.folder / bucket.name)
        yield lake, bucket


def main() -> int:
    """Measure, and report."""
    child(RUNNERS)
    sys.path.insert(0, str(ROOT))
    arguments = sys.argv[1:]
    runs = next((int(each) for each in arguments if each.isdecimal()), 3)
    sections = [each for each in arguments if each in LIMITS] or list(LIMITS)
    measured: list[Bar] = []
    if "disk" in sections:
        with tempfile.TemporaryDirectory() as place:
            fill(Path(place))
            measured += bars("disk", {shape: f"{place}/{shape}" for shape in SHAPES}, {}, runs)
    if sections != ["disk"]:
        measured += of_servers(sections, runs)
    return report(measured)


def of_servers(sections: Sequence[str], runs: int) -> list[Bar]:
    """Measure what is in S3 and in lakeFS."""
    measured: list[Bar] = []
    with filled() as (lake, bucket):
        if "s3" in sections:
            places = {shape: f"{bucket.uri}/{shape}" for shape in SHAPES}
            measured += bars("s3", places, bucket.storage_options, runs)
        if {"lakefs", "far"} & set(sections):
            for shape in SHAPES:
                lake.import_from(f"{bucket.uri}/{shape}", shape)
        if "lakefs" in sections:
            places = {shape: f"lakefs://{lake.repository}/main/{shape}" for shape in SHAPES}
            measured += bars("lakefs", places, lake.options(), runs)
        if "far" in sections:
            with far(bucket.server.endpoint) as endpoint:
                options = {**bucket.storage_options, "AWS_ENDPOINT_URL": endpoint}
                place = {"partitions in S3": f"{bucket.uri}/partitions"}
                measured += bars("far", place, options, runs)
            with far(lake.server.endpoint) as endpoint:
                place = {"partitions in lakeFS": f"lakefs://{lake.repository}/main/partitions"}
                measured += bars("far", place, lake.options(endpoint), runs)
    return measured


if __name__ == "__main__":
    sys.exit(main())

"""How fast a table's files are copied from place to place, against the tools of the trade.

* ``s3``: 5,000 objects of 1 MiB from one prefix of S3 to another, against rclone, which lets the
  store copy as well; and how many bytes pass through us, counted by a relay before the store.
* ``huge``: one object of 6 GiB, the same way.
* ``disk``: 20,000 files of 4 KiB and two of 2 GiB from local disk to local disk, against
  ``cp -r`` followed by ``sync``.
* ``up`` and ``down``: 2,000 files of 1 MiB and two of 1 GiB between local disk and S3, against
  rclone.

The store is versitygw on this machine, over https. Both sides have the same number of transfers
under way. Each contender's copy is deleted before the next one begins. Run it with ``make bench``,
or alone: ``python bench/store_copies.py [SECTION…] [RUNS]``. It needs 14 GB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.measure import CHILD, Bar, child, counted, report
from support.object_store import s3_server
from support.random_tables import commit_of, random_table

ROOT = Path(__file__).resolve().parents[1]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TRANSFERS = 16
PART_TRANSFERS = 4
BUCKET = "bench"
_RELAY_BYTES = 1 << 18

SMALL = {"s3": (5_000, MIB), "disk": (20_000, 4 * KIB), "stream": (2_000, MIB)}
LARGE = {"s3": (1, 6 * GIB), "disk": (2, 2 * GIB), "stream": (2, GIB)}


@dataclass(frozen=True, slots=True)
class Job:
    """One copy of all files of a table, except its log."""

    source: str
    target: str
    options: dict[str, str]


def ours(argument: str) -> Callable[[], object]:
    """Copy as a move does in process."""
    from lakeferry.engine import CopyPlan
    from lakeferry.engines.local_engine import LocalEngine
    from lakeferry.log.rewrite import Unchanged
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    job = Job(**json.loads(argument))
    store, there = open_store(job.source, job.options), open_store(job.target, job.options)
    plan = CopyPlan(store.config, there.config, DeltaLog(store).segment(), Unchanged())

    def work() -> object:
        with LocalEngine() as engine:
            return asdict(engine.copy(plan))

    return work


def counts(source: str, target: str, files: int) -> tuple[dict[str, int], Counter[str]]:
    """Return what a copy of so many files tells, and what it asks of the stores."""
    from lakeferry.storage import open_store

    store = open_store(source)
    for number in range(files):
        store.put(f"part-{number}.parquet", b"x" * KIB)
    store.put(
        f"_delta_log/{0:020d}.json", commit_of({f"part-{n}.parquet": KIB for n in range(files)})
    )
    with counted() as calls:
        done = ours(json.dumps(asdict(Job(source, target, {}))))()
    assert isinstance(done, dict)
    return done, calls


def rclone(argument: str) -> Callable[[], object]:
    """Copy with rclone, which copies in the store if both ends are there."""
    return _rclone(Job(**json.loads(argument)))


def _rclone(job: Job, *options: str) -> Callable[[], object]:
    command = [
        str(Path(sys.executable).parent / "rclone"),
        *("copy", _for_rclone(job.source), _for_rclone(job.target)),
        *("--exclude", "_delta_log/**", "--s3-no-check-bucket"),
        *("--transfers", str(TRANSFERS), "--checkers", str(TRANSFERS)),
        *("--s3-upload-concurrency", str(PART_TRANSFERS)),
        *options,
    ]
    variables = {
        "RCLONE_CONFIG_FAR_TYPE": "s3",
        "RCLONE_CONFIG_FAR_PROVIDER": "Other",
        "RCLONE_CONFIG_FAR_ACCESS_KEY_ID": job.options.get("AWS_ACCESS_KEY_ID", ""),
        "RCLONE_CONFIG_FAR_SECRET_ACCESS_KEY": job.options.get("AWS_SECRET_ACCESS_KEY", ""),
        "RCLONE_CONFIG_FAR_ENDPOINT": job.options.get("AWS_ENDPOINT_URL", ""),
        "RCLONE_CONFIG_FAR_REGION": job.options.get("AWS_REGION", ""),
        "RCLONE_CONFIG": "/dev/null",
    }

    def work() -> None:
        subprocess.run(command, env={**os.environ, **variables}, check=True)

    return work


def _for_rclone(place: str) -> str:
    return f"far:{place.removeprefix('s3://')}" if place.startswith("s3://") else place


def cp(argument: str) -> Callable[[], object]:
    """Copy with ``cp -r``, and ``sync``."""
    job = Job(**json.loads(argument))

    def work() -> None:
        subprocess.run(["cp", "-r", job.source, job.target], check=True)
        subprocess.run(["sync"], check=True)

    return work


RUNNERS = {"ours": ours, "rclone": rclone, "cp": cp}


# --- Runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """Where copies are made: a folder, and a store whose buckets are folders, too."""

    scratch: Path
    buckets: Path
    options: dict[str, str]

    def local(self, place: str) -> Path:
        """Return the folder of a place."""
        if place.startswith("s3://"):
            return self.buckets / place.removeprefix("s3://")
        return Path(place)

    def fill(self, target: str, *kinds: tuple[int, int]) -> None:
        """Make a table on S3; rclone uploads it, so that its objects have what S3 gives them.

        Few parts, because versitygw keeps a list of them in an extended attribute of the file,
        which ext4 limits to 4 KiB.
        """
        made = random_table(self.scratch / uuid.uuid4().hex, *kinds)
        _rclone(Job(str(made), target, self.options), "--s3-chunk-size", "256Mi")()
        log = Path("_delta_log") / f"{0:020d}.json"
        (self.local(target) / log).parent.mkdir()
        shutil.copy(made / log, self.local(target) / log)
        shutil.rmtree(made)

    def once(self, runner: str, source: str, target: str, **options: str) -> dict[str, Any]:
        """Make one copy in a process of its own, and delete it."""
        job = json.dumps(asdict(Job(source, target, {**self.options, **options})))
        subprocess.run(["sync"], check=True)
        done = subprocess.run(
            [sys.executable, __file__, CHILD, runner, job],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        copied = [path for path in self.local(target).rglob("*.parquet") if path.is_file()]
        there = sorted((path.name, path.stat().st_size) for path in copied)
        wanted = sorted(
            (path.name, path.stat().st_size) for path in self.local(source).glob("*.parquet")
        )
        if there != wanted:
            raise SystemExit(f"{runner} has copied {len(there)} of {len(wanted)} files")
        shutil.rmtree(self.local(target))
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def against(self, peer: str, source: str, target: str, runs: int) -> tuple[float, float]:
        """Return the median seconds of ours and of the peer's, which take turns."""
        taken: dict[str, list[float]] = {"ours": [], peer: []}
        for _ in range(runs):
            for runner, seconds in taken.items():
                seconds.append(self.once(runner, source, f"{target}-{uuid.uuid4().hex}")["seconds"])
        return statistics.median(taken["ours"]), statistics.median(taken[peer])


@contextmanager
def field() -> Iterator[Field]:
    """Run versitygw with one bucket, over https."""
    with s3_server() as (server, scratch):
        bucket = server.create_bucket(BUCKET)
        yield Field(scratch, scratch / "buckets", bucket.storage_options)


class Relay:
    """Hands the bytes of connections through to a server, and counts them."""

    def __init__(self, url: str) -> None:
        """Lead to the server at ``url``."""
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "", parts.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self.bytes = 0
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._listener.accept()
            there = socket.create_connection(self._upstream)
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._hand, args=(one, other), daemon=True).start()

    def _hand(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(_RELAY_BYTES):
                with self._lock:
                    self.bytes += len(data)
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)


# --- Sections ------------------------------------------------------------------------------


def _inside(place: Field, what: str, kind: tuple[int, int], runs: int) -> list[Bar]:
    folder = f"{BUCKET}/{uuid.uuid4().hex}"
    source = f"s3://{folder}"
    place.fill(source, kind)
    seconds = place.against("rclone", source, f"s3://{BUCKET}/copy", runs)
    relay = Relay(place.options["AWS_ENDPOINT_URL"])
    told = place.once("ours", source, f"s3://{BUCKET}/counted", AWS_ENDPOINT_URL=relay.url)
    shutil.rmtree(place.buckets / folder)
    size = kind[0] * kind[1]
    print(f"  {what}: {told['result']['by_store_bytes'] / size:.0%} copied by the store")
    return [
        Bar(f"S3 to S3, {what}, to rclone", *seconds, "s", 1.1),
        Bar(f"bytes through us, {what}, to all bytes", relay.bytes / MIB, size / MIB, "MiB", 0.01),
    ]


def s3(place: Field, runs: int) -> list[Bar]:
    """Many objects in one bucket."""
    return _inside(place, "5,000 x 1 MiB", SMALL["s3"], runs)


def huge(place: Field, runs: int) -> list[Bar]:
    """One object that is larger than S3 copies in one request."""
    return _inside(place, "6 GiB", LARGE["s3"], runs)


def disk(place: Field, runs: int) -> list[Bar]:
    """Files on local disk."""
    bars = []
    for what, kind in (("20,000 x 4 KiB", SMALL["disk"]), ("2 x 2 GiB", LARGE["disk"])):
        source = random_table(place.scratch / f"disk-{kind[0]}", kind)
        seconds = place.against("cp", str(source), str(place.scratch / "copy"), runs)
        bars.append(Bar(f"disk to disk, {what}, to cp and sync", *seconds, "s", 1.2))
        shutil.rmtree(source)
    return bars


def _streamed(place: Field, runs: int, *, up: bool) -> list[Bar]:
    bars = []
    for what, kind in (("2,000 x 1 MiB", SMALL["stream"]), ("2 x 1 GiB", LARGE["stream"])):
        name = f"{'up' if up else 'down'}-{kind[0]}"
        source = str(place.scratch / name) if up else f"s3://{BUCKET}/{name}"
        target = f"s3://{BUCKET}/copy" if up else str(place.scratch / "copy")
        if up:
            random_table(Path(source), kind)
        else:
            place.fill(source, kind)
        way = "disk to S3" if up else "S3 to disk"
        seconds = place.against("rclone", source, target, runs)
        bars.append(Bar(f"{way}, {what}, to rclone", *seconds, "s", 1.0))
        shutil.rmtree(place.local(source))
    return bars


def up(place: Field, runs: int) -> list[Bar]:
    """From local disk to S3."""
    return _streamed(place, runs, up=True)


def down(place: Field, runs: int) -> list[Bar]:
    """From S3 to local disk."""
    return _streamed(place, runs, up=False)


SECTIONS = {"s3": s3, "huge": huge, "disk": disk, "up": up, "down": down}


def main() -> int:
    """Run the sections that are asked for."""
    words = sys.argv[1:]
    runs = next((int(word) for word in words if word.isdigit()), 5)
    wanted = [word for word in words if word in SECTIONS] or list(SECTIONS)
    sys.path.insert(0, str(ROOT))
    bars: list[Bar] = []
    with field() as place:
        for name in wanted:
            print(f"{name} …", flush=True)
            begun = time.perf_counter()
            bars += SECTIONS[name](place, runs)
            print(f"  took {time.perf_counter() - begun:.0f} s", flush=True)
    return report(bars)


if __name__ == "__main__":
    child(RUNNERS)
    sys.exit(main())

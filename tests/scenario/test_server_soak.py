"""A server among hostile clients: whoever pushes and pulls beside them gets through.

In ``make test`` it takes some twenty seconds. ``make soak`` runs it for ten minutes, with more
honest clients (``LAKEFERRY_SOAK_S`` says for how long).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

import lakeferry
from lakeferry.storage import open_store
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from tests.support.hosting import contents
from tests.support.reference_client import fetch
from tests.support.serving import Serving, serving

MIB = 1 << 20
SOAK_S = float(os.environ.get("LAKEFERRY_SOAK_S", "0"))
HONEST = 50 if SOAK_S else 6
AT_ONCE = 4
MOST_MEMORY_BYTES = 400 * MIB
WITHIN_S = 90.0
"""How long a small push or pull may take beside all the others."""


@dataclass
class Watch:
    """The memory of a process, looked at while something else goes on."""

    pid: int
    seen: list[int] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.ended.wait(0.1):
            status = Path(f"/proc/{self.pid}/status").read_text()
            [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
            self.seen.append(int(line.split()[1]) * 1024)

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join()


@contextmanager
def hostile(server: Serving, *words: str) -> Iterator[None]:
    """Have hostile clients at a server until the context ends."""
    command = [sys.executable, "-m", "tests.support.hostile_clients", server.url, *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield
        assert process.poll() is None, (process.stderr and process.stderr.read()) or b""
    finally:
        process.kill()
        process.communicate()


def table(folder: Path, rows: int) -> Path:
    """Make a table of several files whose bytes don't compress."""
    for _ in range(3):
        column = pa.array([random.randbytes(64) for _ in range(rows)])
        write_deltalake(folder, pa.table({"x": column}), mode="append")
    return folder


def round_trip(server: Serving, source: Path, home: Path, number: int, token: str) -> float:
    """Push a table, pull it, compare, and return how long the slower of the two took."""
    url = f"{server.url}/acc/honest{number}"
    copy = home / f"copy{number}"
    began_s = time.monotonic()
    lakeferry.Table(str(source)).push(url, token=token)
    pushed_s = time.monotonic()
    lakeferry.Table(str(copy)).pull(url, token=token)
    pulled_s = time.monotonic()
    here, there = (contents(open_store(str(place))) for place in (source, copy))
    parquet = {path: data for path, data in here.items() if path.endswith(".parquet")}
    assert {path: there.get(path) for path in parquet} == parquet
    return max(pushed_s - began_s, pulled_s - pushed_s)


def test_honest_clients_get_through_among_hostile_ones(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    home = tmp_path / "server"
    home.mkdir()
    store = open_store(str(home / "root"))
    tokens = Tokens(store)
    writer, reader = tokens.create(Scope.WRITE), tokens.create(Scope.READ)
    honest = [tokens.create(Scope.WRITE) for _ in range(3)]
    source = table(tmp_path / "source", 20_000)
    with serving(home, {}, root=store, forked=False) as server:
        public = table(tmp_path / "public", 100_000)
        done = lakeferry.Table(str(public)).push(
            f"{server.url}/acc/public", token=writer, visibility="public"
        )
        assert done.head
        [path, *_] = [found.path for found in store.list("acc/public/") if "part-" in found.path]
        data = store.get(path)
        name = Multihash.sha3_256(data).text
        asked = f"acc/public/data/{name}/{path.removeprefix('acc/public/')}"
        assert fetch(f"{server.url}/{asked}") == (200, data)
        watch = Watch(server.process.pid)
        deadline = time.monotonic() + (SOAK_S or 10)
        with watch.watching(), hostile(server, reader, writer, asked):
            time.sleep(3)

            def work(number: int) -> float:
                # Over the whole time, so that there are some at every moment of it.
                pause_s = max(0.0, deadline - time.monotonic()) / HONEST * AT_ONCE
                took_s = round_trip(server, source, tmp_path, number, honest[number % 3])
                time.sleep(max(0.0, min(pause_s, deadline - time.monotonic()) - took_s))
                return took_s

            with ThreadPoolExecutor(AT_ONCE) as pool:
                took_s = list(pool.map(work, range(HONEST)))
            time.sleep(max(0.0, deadline - time.monotonic()))
        assert fetch(f"{server.url}/healthz")[0] == 200
        figures = {
            "honest": HONEST,
            "slowest_s": round(max(took_s), 2),
            "median_s": round(sorted(took_s)[len(took_s) // 2], 2),
            "most_memory_mib": max(watch.seen) // MIB,
            "last_memory_mib": watch.seen[-1] // MIB,
        }
        record_property("soak", figures)
        sys.stdout.write(f"{figures}\n")
        assert max(took_s) < WITHIN_S, figures
        assert max(watch.seen) < MOST_MEMORY_BYTES, figures
        assert "Traceback" not in server.shown()

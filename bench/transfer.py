"""What it costs to transfer a dataset, on a real S3 server, against the tools of the trade.

* ``small``: a pull of a Delta table of 10,000 files of 4 KiB, every digest checked, against
  ``s5cmd cp`` of the same objects, and against a client of the Simple Transfer Protocol that
  asks for one thing after the other; and a push of what is there already, against the first
  one. An ODF dataset of as many objects has 5,000 blocks on top, each a file: its pull is
  compared with ``s5cmd cp`` of the same 15,000 files, and the time for the objects alone told.
* ``far``: a pull of 1,000 objects where every round trip takes 20 ms longer, against the same
  simple client by the same way.
* ``large``: one object of 2 GiB, against ``rclone copyto``.
* ``many``: 100,000 objects; the most memory that the server and the client ever held.
* ``crowd``: 200 pulls at once; all succeed, and the server's memory is bounded.

The store speaks https and keeps connections open, as every store does. Everything is on this
machine, so that a core that hashes is one that doesn't serve. Clients run in processes of their
own, and their imports aren't counted. It begins when the file system makes files at its usual pace
(:func:`settled`). Run it with ``make bench``, or alone:
``python bench/transfer.py [SECTION…] [RUNS]``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.measure import Bar, child, compare, counted, report
from support.object_store import s3_server

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BIN = Path(sys.executable).parent
SMALL, SMALL_BYTES = 10_000, 4096
FAR, FAR_MS = 1_000, 20
LARGE_BYTES = 2 << 30
MANY, MANY_BYTES = 100_000, 256
MEMORY_MIB = 400_000_000 / (1 << 20)
CROWD, CROWD_OBJECTS = 200, 20
NAME = "acc/d"
_FEW = 100
_PROBES = 500
_SLOW_TO_MAKE = 8.0
_WAIT_S, _LONGEST_WAIT_S = 15, 600


# --- What is transferred --------------------------------------------------------------


def dataset(folder: Path, objects: int, size_bytes: int) -> Path:
    """Make an ODF dataset on local disk: two objects for each block."""
    from lakeferry.transfer.chain.hashes import Multihash
    from tests.support.odf import AddData, Chain, Checkpoint, Slice

    for kind in ("blocks", "data", "checkpoints", "refs"):
        (folder / kind).mkdir(parents=True)
    chain = Chain()
    last: Multihash | None = None

    def kept(kind: str, number: int) -> Multihash:
        data = number.to_bytes(8, "little") * (size_bytes // 8)
        name = Multihash.sha3_256(data)
        (folder / kind / name.text).write_bytes(data)
        return name

    for number in range(objects // 2):
        data, checkpoint = kept("data", 2 * number), kept("checkpoints", 2 * number + 1)
        chain.add(
            AddData(
                prev_checkpoint=last,
                prev_offset=number - 1 if number else None,
                new_data=Slice(data, number, number, size_bytes),
                new_checkpoint=Checkpoint(checkpoint, size_bytes),
            )
        )
        last = checkpoint
    for name, block in chain.blocks:
        (folder / "blocks" / name.text).write_bytes(block)
    (folder / "refs" / "head").write_text(chain.head.text)
    return folder


def table(folder: Path, files: int, size_bytes: int) -> Path:
    """Make a Delta table on local disk: one commit adds all of its files."""
    (folder / "_delta_log").mkdir(parents=True)
    schema = '{"type":"struct","fields":[]}'
    first: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "5f0c1d0e-0000-4000-8000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    adds: list[dict[str, Any]] = []
    for number in range(files):
        name = f"part-{number:05d}.parquet"
        (folder / name).write_bytes(number.to_bytes(8, "little") * (size_bytes // 8))
        add = {"path": name, "size": size_bytes, "modificationTime": 0, "dataChange": True}
        adds.append({"add": {**add, "partitionValues": {}}})
    for version, actions in enumerate((first, adds)):
        text = "\n".join(json.dumps(action) for action in actions)
        (folder / "_delta_log" / f"{version:020d}.json").write_text(f"{text}\n")
    return folder


def one_object(folder: Path, size_bytes: int) -> Path:
    """Make an ODF dataset of one large object."""
    from lakeferry.transfer.chain.hashes import Digest
    from tests.support.odf import AddData, Chain, Slice

    for kind in ("blocks", "data", "refs"):
        (folder / kind).mkdir(parents=True)
    digest = Digest()
    part = os.urandom(1 << 20)
    with (folder / "data" / "part").open("wb") as file:
        for number in range(size_bytes >> 20):
            piece = number.to_bytes(8, "little") + part[8:]
            digest.update(piece)
            file.write(piece)
    name = digest.multihash()
    (folder / "data" / "part").rename(folder / "data" / name.text)
    chain = Chain()
    chain.add(AddData(None, None, Slice(name, 0, 9, size_bytes), None))
    for block_name, block in chain.blocks:
        (folder / "blocks" / block_name.text).write_bytes(block)
    (folder / "refs" / "head").write_text(chain.head.text)
    return folder


# --- Who serves it --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """A running ``lakeferry serve`` over a bucket."""

    url: str
    token: str
    process: subprocess.Popen[str]
    environment: dict[str, str]
    bucket: str

    @property
    def peak_mib(self) -> float:
        """The most memory that the server has held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+([0-9]+)", status)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """Run versitygw with one bucket, over https; give the environment of its clients."""
    with s3_server() as (server, _):
        server.create_bucket("bench")
        yield {**server.environment(), "S3_ENDPOINT_URL": server.endpoint}


@contextmanager
def served(environment: dict[str, str], root: str, *words: str) -> Iterator[Served]:
    """Serve a root in the bucket, in a process of its own."""
    uri = f"s3://bench/{root}"
    every = {**os.environ, **environment}
    with subprocess.Popen(
        [BIN / "lakeferry", "serve", "--root", uri, "--port", "0", "--json", *words],
        env=every,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            # Once the server is there: tokens are for a root that there is.
            made = subprocess.run(
                [BIN / "lakeferry", "token", "create", "--root", uri, "--scope", "write", "--json"],
                env=every,
                stdout=subprocess.PIPE,
                check=True,
            )
            token = json.loads(made.stdout)["token"]
            yield Served(url, token, process, environment, f"bench/{root}")
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def delayed(to: str, delay_ms: int) -> Iterator[str]:
    """Run a proxy before a server that holds every piece back for half of a round trip."""
    parts = urlsplit(to)
    ready: list[str] = []
    is_ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Pieces overlap on the way: it is delay, and not the width of the line, that is slow.
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, piece = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

        delivery = asyncio.create_task(deliver())
        try:
            while True:
                piece = await reader.read(1 << 18)
                queue.put_nowait((loop.time() + delay_ms / 2000, piece))
                if not piece:
                    break
            await delivery
        except OSError:
            delivery.cancel()
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ready.append(f"{parts.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        is_ready.set()
        await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        task = loop.create_task(main())
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_ready.wait(10)
    yield ready[0]
    # The process ends soon; connections that are left go with it.


# --- Who transfers it: each in a process of its own ---------------------------------------


def settled(folder: Path) -> None:
    """Wait until a file is made about as fast as it is written anew.

    For some minutes after very many were deleted, by a run of the tests say, ext4 takes ten
    times as long to make one, for it passes over each inode that was just given up; then the
    section of small files measures that, whoever makes them.
    """
    for waited_s in range(0, _LONGEST_WAIT_S, _WAIT_S):
        names = [folder / f"probe-{waited_s}-{number}" for number in range(_PROBES)]
        took: list[float] = []
        for _ in ("make", "write"):
            begun = time.perf_counter()
            for name in names:
                name.write_bytes(b"x" * SMALL_BYTES)
            took.append(time.perf_counter() - begun)
        if took[0] < _SLOW_TO_MAKE * took[1]:
            return
        print(f"  making a file takes {took[0] / took[1]:.0f} times as long as writing it: waiting")
        time.sleep(_WAIT_S)


def fresh(folder: str) -> Path:
    """Return a folder with nothing in it.

    What earlier runs left stays if it is many files: ext4 makes files slowly where many were
    just deleted, for it passes over each of their inodes. Nobody waits for what others wrote.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    for earlier in Path(folder).iterdir():
        if len(list(islice(earlier.rglob("*"), _FEW))) < _FEW:
            shutil.rmtree(earlier)
    os.sync()
    return Path(tempfile.mkdtemp(dir=folder))


def pulling(argument: str) -> Callable[[], object]:
    """Pull with our client."""
    from lakeferry.storage import open_store
    from lakeferry.transfer.client import event_loop
    from lakeferry.transfer.client.push_and_pull import Pull
    from lakeferry.transfer.client.remote_dataset import Terms

    asked = json.loads(argument)
    store = open_store(str(fresh(asked["to"])))
    pull = Pull(asked["url"], store, Terms(token=asked["token"]))
    return lambda: event_loop.run_in_loop(pull.run()).objects


def pushing(argument: str) -> Callable[[], object]:
    """Push with our client."""
    from lakeferry.storage import open_store
    from lakeferry.transfer.client import event_loop
    from lakeferry.transfer.client.push_and_pull import Push
    from lakeferry.transfer.client.remote_dataset import Terms

    asked = json.loads(argument)
    store = open_store(asked["from"])
    push = Push(store, asked["url"], Terms(token=asked["token"]))
    return lambda: event_loop.run_in_loop(push.run()).objects


def simply(argument: str) -> Callable[[], object]:
    """Pull as the Simple Transfer Protocol's plainest client does: one request at a time."""
    from lakeferry.transfer.chain import odf_blocks
    from lakeferry.transfer.chain.hashes import Multihash
    from lakeferry.transfer.datasets.delta import version_blocks
    from lakeferry.transfer.datasets.odf import FOLDERS

    asked = json.loads(argument)
    parts = urlsplit(asked["url"])
    target = fresh(asked["to"])
    headers = {"authorization": f"Bearer {asked['token']}"}

    def work() -> object:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

        def get(path: str) -> bytes:
            connection.request("GET", f"{parts.path}/{path}", headers=headers)
            response = connection.getresponse()
            data = response.read()
            assert response.status == 200, (path, response.status)
            (target / path[:120].replace("/", "-")).write_bytes(data)
            return data

        count = 0
        head: Multihash | None = Multihash.parse(get("refs/head").decode())
        while head is not None:
            data = get(f"blocks/{head.text}")
            parse = (
                version_blocks.parse_version_block
                if version_blocks.is_version_block(data)
                else odf_blocks.parse_odf_block
            )
            block = parse(data, head)
            for ref in block.objects:
                path = "" if ref.path is None else f"/{ref.path}"
                data = get(f"{FOLDERS[ref.kind]}/{ref.hash.text}{path}")
                assert Multihash.sha3_256(data) == ref.hash
                count += 1
            head = block.prev_hash
        return count

    return work


def s5cmd(argument: str) -> Callable[[], object]:
    """Copy the objects with s5cmd."""
    asked = json.loads(argument)
    target = fresh(asked["to"])

    def work() -> object:
        for what in asked["what"].split():
            source = f"s3://{asked['bucket']}/{NAME}/{what}"
            words = [str(BIN / "s5cmd"), "--log", "error", "cp", source, f"{target}/"]
            subprocess.run(words, check=True)
        return None

    return work


def rclone(argument: str) -> Callable[[], object]:
    """Copy one object with rclone."""
    asked = json.loads(argument)
    target = fresh(asked["to"])
    source, path = f":s3:{asked['bucket']}/{asked['key']}", str(target / "object")
    words = [
        *(str(BIN / "rclone"), "copyto", source, path, *asked["more"].split()),
        *("--s3-provider", "Other", "--s3-env-auth", "--s3-force-path-style"),
        *("--s3-endpoint", os.environ["AWS_ENDPOINT_URL"], "--config", os.devnull),
    ]
    return lambda: subprocess.run(words, check=True, stderr=subprocess.DEVNULL).returncode


RUNNERS = {
    "pull": pulling,
    "push": pushing,
    "simple": simply,
    "s5cmd": s5cmd,
    "rclone": rclone,
}


def measured(name: str, **asked: str) -> dict[str, float]:
    """Run one client once, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", name, json.dumps(asked)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def turns(work: dict[str, dict[str, str]], runs: int) -> dict[str, float]:
    """Return the median of each client's seconds, measured by turns."""
    found = compare(__file__, [(name, json.dumps(asked)) for name, asked in work.items()], runs)
    return {name: cost.seconds for name, cost in found.items()}


# --- Sections -------------------------------------------------------------------------


def counts(objects: int, folder: Path) -> dict[str, tuple[object, Counter[str]]]:
    """Return how many objects move in two pushes and a pull, and what is asked of all stores.

    Server and client are in this process, and the root is on local disk.
    """
    from tests.support.hosting import Place, hosted

    made = table(folder / "made", objects, SMALL_BYTES)
    found: dict[str, tuple[object, Counter[str]]] = {}
    with hosted(Place((folder / "root").as_uri())) as server:
        there = {"url": server.dataset(), "token": server.token()}
        for name, runner, more in (
            ("push", pushing, {"from": str(made)}),
            ("push again", pushing, {"from": str(made)}),
            ("pull", pulling, {"to": str(folder / "pulled")}),
        ):
            work = runner(json.dumps({**there, **more}))
            with counted() as calls:
                moved = work()
            found[name] = moved, calls
    return found


def small(scratch: Path, environment: dict[str, str], runs: int) -> list[Bar]:
    """Many small objects, near by."""
    settled(scratch)
    made = table(scratch / "small", SMALL, SMALL_BYTES)
    with served(environment, "small") as server:
        there = {"url": f"{server.url}/{NAME}", "token": server.token}
        first = measured("push", **there, **{"from": str(made)})["seconds"]
        again = statistics.median(
            measured("push", **there, **{"from": str(made)})["seconds"] for _ in range(runs)
        )
        found = against_s5cmd(server, scratch, "part-*", runs)
        simple = measured("simple", **there, to=str(scratch / "simple"))["seconds"]
    made = dataset(scratch / "odf", SMALL, SMALL_BYTES)
    with served(environment, "odf") as server:
        there = {"url": f"{server.url}/{NAME}", "token": server.token}
        measured("push", **there, **{"from": str(made)})
        odf = against_s5cmd(server, scratch, "*", runs)
        copy = {"bucket": server.bucket, "to": str(scratch / "copied")}
        objects = measured("s5cmd", **copy, what="data/* checkpoints/*")["seconds"]
    print(f"  ODF: {odf['pull']:.2f} s, s5cmd of its objects without the blocks: {objects:.2f} s")
    return [
        Bar("pull of 10,000 small objects, to s5cmd", found["pull"], found["s5cmd"], "s", 1.0),
        Bar("the same, to a sequential simple pull", found["pull"], simple, "s", 1 / 3),
        Bar("push of what is there, to the first push", again, first, "s", 0.1),
        Bar("pull of an ODF dataset, to s5cmd of its files", odf["pull"], odf["s5cmd"], "s", 1.0),
    ]


def against_s5cmd(server: Served, scratch: Path, what: str, runs: int) -> dict[str, float]:
    """Pull and copy the same objects by turns."""
    pull = {"url": f"{server.url}/{NAME}", "token": server.token, "to": str(scratch / "pulled")}
    copy = {"bucket": server.bucket, "what": what, "to": str(scratch / "copied")}
    return turns({"pull": pull, "s5cmd": copy}, runs)


def far(scratch: Path, environment: dict[str, str], runs: int) -> list[Bar]:
    """Fewer small objects, far away."""
    made = dataset(scratch / "far", FAR, SMALL_BYTES)
    with ExitStack() as held:
        store = held.enter_context(delayed(environment["AWS_ENDPOINT_URL"], FAR_MS))
        slow = {**environment, "AWS_ENDPOINT_URL": store}
        near = held.enter_context(served(environment, "far"))
        there = {"url": f"{near.url}/{NAME}", "token": near.token}
        measured("push", **there, **{"from": str(made)})
        server = held.enter_context(served(slow, "far"))
        proxy = held.enter_context(delayed(server.url, FAR_MS))
        there = {"url": f"{proxy}/{NAME}", "token": server.token}
        ours = statistics.median(
            measured("pull", **there, to=str(scratch / "far-pulled"))["seconds"]
            for _ in range(runs)
        )
        near_proxy = held.enter_context(delayed(near.url, FAR_MS))
        # The peer's server is near its store, which is to the peer's advantage.
        peer = {"url": f"{near_proxy}/{NAME}", "token": near.token}
        simple = measured("simple", **peer, to=str(scratch / "far-simple"))["seconds"]
    return [Bar("pull of 1,000 over 20 ms, to a simple one", ours, simple, "s", 0.1)]


def large(scratch: Path, environment: dict[str, str], runs: int) -> list[Bar]:
    """One large object."""
    made = one_object(scratch / "large", LARGE_BYTES)
    (key,) = (f"data/{path.name}" for path in (made / "data").iterdir())
    with served(environment, "large") as server:
        there = {"url": f"{server.url}/{NAME}", "token": server.token}
        # In one piece: then its ETag is a digest, and rclone checks what it copied, too.
        words = [str(BIN / "s5cmd"), "--log", "error", "cp", "--part-size", "4096"]
        place = f"s3://{server.bucket}/{NAME}/{key}"
        subprocess.run([*words, str(made / key), place], check=True)
        pushed = measured("push", **there, **{"from": str(made)})
        assert pushed["result"] == 0
        copied = {
            "bucket": server.bucket,
            "key": f"{NAME}/{key}",
            "to": str(scratch / "large-copied"),
        }
        found = turns(
            {
                "pull": {**there, "to": str(scratch / "large-pulled")},
                "rclone": {**copied, "more": ""},
            },
            runs,
        )
        unchecked = measured("rclone", **copied, more="--ignore-checksum")["seconds"]
    print(f"  rclone without a look at what it copied: {unchecked:.2f} s")
    return [Bar("pull of 2 GiB, to rclone copyto", found["pull"], found["rclone"], "s", 1 / 0.8)]


def many(scratch: Path, environment: dict[str, str], runs: int) -> list[Bar]:  # noqa: ARG001
    """Very many objects, once each way."""
    made = dataset(scratch / "many", MANY, MANY_BYTES)
    with served(environment, "many") as server:
        there = {"url": f"{server.url}/{NAME}", "token": server.token}
        push = measured("push", **there, **{"from": str(made)})
        pull = measured("pull", **there, to=str(scratch / "many-pulled"))
        print(f"  push of {MANY:,}: {push['seconds']:.1f} s; pull: {pull['seconds']:.1f} s")
        return [
            Bar("memory of the server, to 400 MB", server.peak_mib, MEMORY_MIB, "MiB", 1.0),
            Bar("memory of the pushing client", push["peak_mib"], MEMORY_MIB, "MiB", 1.0),
            Bar("memory of the pulling client", pull["peak_mib"], MEMORY_MIB, "MiB", 1.0),
        ]


def crowd(scratch: Path, environment: dict[str, str], runs: int) -> list[Bar]:  # noqa: ARG001
    """Many clients at once."""
    from lakeferry.storage import open_store
    from lakeferry.transfer.client.push_and_pull import Pull
    from lakeferry.transfer.client.remote_dataset import Terms

    made = dataset(scratch / "crowd", CROWD_OBJECTS, SMALL_BYTES)

    async def pulls(url: str, token: str) -> list[int]:
        async def one(number: int) -> int:
            store = open_store(str(scratch / "crowd-pulled" / str(number)))
            return (await Pull(url, store, Terms(token=token, parallel=2)).run()).objects

        return await asyncio.gather(*(one(number) for number in range(CROWD)))

    with served(environment, "crowd") as server:
        there = {"url": f"{server.url}/{NAME}", "token": server.token}
        measured("push", **there, **{"from": str(made)})
        begun = time.perf_counter()
        counts = asyncio.run(pulls(there["url"], server.token))
        print(f"  {CROWD} pulls at once: {time.perf_counter() - begun:.1f} s")
        failed = sum(count != CROWD_OBJECTS for count in counts)
        held = server.peak_mib
        return [
            Bar("200 pulls at once, and those that failed", CROWD + failed, CROWD, "", 1.0),
            Bar("memory of the server with 200, to 400 MB", held, MEMORY_MIB, "MiB", 1.0),
        ]


SECTIONS = {"small": small, "far": far, "large": large, "many": many, "crowd": crowd}


def main() -> int:
    """Run the sections that are asked for."""
    words = sys.argv[1:]
    runs = next((int(word) for word in words if word.isdigit()), 3)
    wanted = [word for word in words if word in SECTIONS] or list(SECTIONS)
    bars: list[Bar] = []
    with s3() as environment:
        os.environ |= environment
        for name in wanted:
            with tempfile.TemporaryDirectory(dir=os.environ.get("LAKEFERRY_BENCH")) as scratch:
                print(f"{name} …", flush=True)
                bars += SECTIONS[name](Path(scratch), environment, runs)
    return report(bars)


if __name__ == "__main__":
    child(RUNNERS)
    sys.exit(main())

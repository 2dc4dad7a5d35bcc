"""``lakeferry serve`` as a process of its own, and how a test sees what it has done."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lakeferry.export.job_queue import QUEUE_FOLDER, Queue
from lakeferry.storage import Store, open_store
from tests.support.forked import ForkedRun
from tests.support.servers import WEBHOOK_SECRET
from tests.unit.cli.program import PROGRAM, environment

WITHIN_S = 90


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server, and the store below whose root it keeps its queue."""

    process: subprocess.Popen[bytes] | ForkedRun
    output: IO[bytes]
    """What it has written to standard output since its first line."""
    url: str
    store: Store
    log: Path

    @property
    def queue(self) -> Queue:
        """Its queue, as another server would see it."""
        return Queue(self.store)

    @property
    def is_at_work(self) -> bool:
        """Whether a job is held."""
        return any(self.store.list(f"{QUEUE_FOLDER}attempts/"))

    @property
    def events(self) -> int:
        """How many events it has accepted."""
        return len(list(self.store.list(f"{QUEUE_FOLDER}seen/")))

    def has_done(self, events: int) -> None:
        """Wait until so many events have come, all told, and none of them waits or has failed."""
        until(lambda: self.events >= events and not self.queue.pending(), self.shown)
        assert self.events == events, self.shown()
        assert self.queue.failures() == [], self.shown()

    def shown(self) -> str:
        """What it has written to standard error."""
        return self.log.read_text(errors="replace")[-4000:]

    def post(
        self, body: bytes, headers: Mapping[str, str], path: str = "/.lakeferry/lakefs"
    ) -> tuple[int, Any]:
        """Send something, and return status and document of the answer."""
        request = urllib.request.Request(
            f"{self.url}{path}", body, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def end(self, signal: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(signal)
        ended = self.process.wait(WITHIN_S)
        return ended if isinstance(ended, int) else ended.returncode


@contextmanager
def serving(
    folder: Path,
    variables: Mapping[str, str],
    *words: str,
    secret: str | None = WEBHOOK_SECRET,
    root: Store | None = None,
    forked: bool = True,
) -> Iterator[Serving]:
    """Run a server on a free port until the context ends; its root is in ``folder`` by default.

    Tests that are about how it starts or how much memory it takes want it not to be forked.
    """
    store = root or open_store(str(folder / "server"))
    log = folder / "serve.log"
    more = {} if secret is None else {"LAKEFERRY_WEBHOOK_SECRET": secret}
    command = [str(PROGRAM), "serve", "--root", store.uri, "--port", "0", "--json", *words]
    env = environment(folder, {**variables, **more})
    reading, writing = os.pipe()
    process: subprocess.Popen[bytes] | ForkedRun
    with ExitStack() as stack, os.fdopen(reading, "rb") as output:
        with os.fdopen(writing, "wb") as out, log.open("ab") as errors:
            if forked:
                process = ForkedRun(
                    command, cwd=folder, env=env, stdout=out.fileno(), stderr=errors.fileno()
                )
                stack.enter_context(process)
            else:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                )
        try:
            first = output.readline()
            assert first, log.read_text()
            yield Serving(process, output, json.loads(first)["url"], store, log)
        finally:
            process.kill()
            process.wait(WITHIN_S)


def until(holds: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)

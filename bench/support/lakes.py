"""A real lakeFS with its blocks on a real S3 server, and its own exporter as a peer.

The exporter is the one that lakeFS ships: a Lua script, run by an action after
each commit. lakeFS itself says when it began and when it was done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from tests.support.servers import LakeFSServer, S3Bucket

UPLOADS = 8
RUN_WITHIN_S = 300
SHORT = 6
"""So much of a commit's id is in the place that the exporter writes to."""
_SCRIPT = """
local aws = require("aws")
local formats = require("formats")
local exporter = require("lakefs/catalogexport/delta_exporter")
local s3 = aws.s3_client(args.s3.key, args.s3.secret, args.s3.region, args.s3.endpoint)
local delta = formats.delta_client(args.lakefs.key, args.lakefs.secret, args.s3.region)
exporter.export_delta_log(action, {args.table}, s3.put_object, delta, "_lakefs_tables")
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """One repository, on whose branch ``main`` everything is done."""

    server: LakeFSServer
    blocks: S3Bucket
    repository: str

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the storage options with which we read and export a table of it."""
        return {
            "lakefs_endpoint": endpoint or self.server.endpoint,
            "lakefs_access_key_id": self.server.access_key,
            "lakefs_secret_access_key": self.server.secret_key,
            **self.blocks.storage_options,
        }

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Put objects on the branch, through the gateway."""
        from lakeferry.storage import open_store

        options = {**self.server.gateway.environment(), "AWS_CONDITIONAL_PUT": "etag"}
        store = open_store(f"s3://{self.repository}/main", options)
        with ThreadPoolExecutor(UPLOADS) as pool:
            list(pool.map(store.put, objects.keys(), objects.values()))

    def commit(self, message: str) -> str:
        """Commit what is staged, and return the commit's id."""
        made = self.server.call(
            "POST", f"/repositories/{self.repository}/branches/main/commits", {"message": message}
        )
        return str(made["id"])

    def import_from(self, source: str, path: str) -> None:
        """Have lakeFS take in the objects below a place of its blockstore, where they are."""
        place = f"/repositories/{self.repository}/branches/main/import"
        wanted = {"path": f"{source}/", "destination": f"{path}/", "type": "common_prefix"}
        begun = self.server.call(
            "POST", place, {"paths": [wanted], "commit": {"message": f"Import {source}"}}
        )
        while not (told := self.server.call("GET", f"{place}?id={begun['id']}"))["completed"]:
            if told.get("error"):
                raise RuntimeError(f"lakeFS can't import {source}: {told['error']}")
            time.sleep(0.5)

    def count(self, prefix: str) -> int:
        """Return how many objects there are below a prefix."""
        found, after, more = 0, "", True
        while more:
            page = self.server.call(
                "GET",
                f"/repositories/{self.repository}/refs/main/objects/ls"
                f"?prefix={prefix}&amount=1000&after={quote(after)}",
            )
            found += len(page["results"])
            after, more = page["pagination"]["next_offset"], page["pagination"]["has_more"]
        return found

    # --- The peer -------------------------------------------------------------------

    def install_exporter(self, table: str) -> None:
        """Have lakeFS export the table of that name and path after each commit, from now on."""
        store = self.blocks.server
        arguments = {
            "table": table,
            "s3": {
                "key": store.access_key,
                "secret": store.secret_key,
                "region": store.region,
                "endpoint": store.endpoint,
            },
            "lakefs": {"key": self.server.access_key, "secret": self.server.secret_key},
        }
        hook = {
            "id": "export",
            "type": "lua",
            "properties": {"script": _SCRIPT, "args": arguments},
        }
        action = {"name": "export", "on": {"post-commit": {"branches": ["main"]}}, "hooks": [hook]}
        descriptor = {"name": table, "type": "delta", "path": table}
        # JSON is YAML too.
        self.put(
            {
                "_lakefs_actions/export.yaml": json.dumps(action).encode(),
                f"_lakefs_tables/{table}.yaml": json.dumps(descriptor).encode(),
            }
        )

    def exporter_seconds(self, commit: str) -> float:
        """Wait for the exporter's run after a commit, and return how long it took."""
        place = f"/repositories/{self.repository}/actions/runs"
        deadline = time.monotonic() + RUN_WITHIN_S
        while time.monotonic() < deadline:
            runs: list[dict[str, Any]] = self.server.call("GET", f"{place}?commit={commit}")[
                "results"
            ]
            if runs and runs[0]["status"] not in ("running", "pending"):
                break
            time.sleep(0.2)
        else:
            raise TimeoutError(f"lakeFS's exporter isn't done after {RUN_WITHIN_S} s")
        run = runs[0]
        if run["status"] != "completed":
            raise RuntimeError(f"lakeFS's exporter {run['status']}: run {run['run_id']}")
        begun, ended = (datetime.fromisoformat(run[name]) for name in ("start_time", "end_time"))
        return (ended - begun).total_seconds()

    def exported_by_peer(self, commit: str, table: str) -> int:
        """Return how many log entries the exporter has written for a commit."""
        folder = self.blocks.server.folder
        assert folder is not None
        exports = folder / self.blocks.name / self.repository / "_lakefs" / "exported" / "main"
        return len(list((exports / commit[:SHORT] / table / "_delta_log").glob("*.json")))


@contextmanager
def running(folder: Path, repository: str = "bench") -> Iterator[Lake]:
    """Run lakeFS and its blockstore while the context is open."""
    from tests.support import components, servers

    gateway, program = components.require("versitygw"), components.require("lakefs")
    with servers.versitygw(gateway, folder / "s3") as blocks:
        bucket = blocks.create_bucket("blocks")
        with servers.lakefs_on_s3(program, folder / "lakefs", bucket) as server:
            server.create_repository(repository)
            yield Lake(server, bucket, repository)

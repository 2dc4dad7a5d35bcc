"""A push and a pull whose objects travel over https, as they do at every real store."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakeferry.storage import open_store
from tests.support import components, servers
from tests.support.certificates import certificate
from tests.support.history import Append, History
from tests.support.servers import S3Bucket
from tests.support.serving import serving
from tests.unit.cli.program import PROGRAM, environment


@pytest.fixture(scope="module")
def bucket(
    versitygw: servers.S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Bucket]:
    """A bucket on a server that speaks https alone; ``versitygw`` is asked for its marker."""
    folder = tmp_path_factory.mktemp("https")
    known = certificate(folder / "certificate")
    binary = components.require("versitygw")
    with servers.versitygw(binary, folder / "server", certificate=known) as server:
        assert server.endpoint.startswith("https://")
        assert server.endpoint != versitygw.endpoint
        yield server.create_bucket("bucket")


def run(folder: Path, variables: Mapping[str, str], *words: str) -> tuple[int, Any]:
    """Run the program as it is installed: TLS reads what it trusts when a process starts."""
    done = subprocess.run(
        [PROGRAM, *words, "--json"],
        cwd=folder,
        env=environment(folder, variables),
        capture_output=True,
        timeout=120,
    )
    said = done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]
    return done.returncode, json.loads(said)


def test_objects_travel_over_https_to_those_who_trust_the_store(
    bucket: S3Bucket, tmp_path: Path
) -> None:
    log = History().then(Append(2), Append(3))
    table = tmp_path / "t"
    log.write(open_store(str(table)))
    trusting = {**bucket.server.environment(), "LAKEFERRY_TOKEN": ""}
    root = open_store(f"{bucket.uri}/root", bucket.storage_options)
    with serving(tmp_path, trusting, root=root) as server:
        code, made = run(
            tmp_path, trusting, "token", "create", "--root", root.uri, "--scope", "write"
        )
        assert code == 0, made
        url, token = f"{server.url}/t", {"LAKEFERRY_TOKEN": made["token"]}
        code, pushed = run(tmp_path, {**trusting, **token}, "push", str(table), url)
        assert (code, pushed.get("objects")) == (0, 5), pushed
        code, pulled = run(tmp_path, {**trusting, **token}, "pull", url, str(tmp_path / "copy"))
        assert (code, pulled.get("objects"), pulled["bytes"]) == (0, 5, pushed["bytes"])
        # A client that doesn't know the authority is told so, and gets nothing.
        code, refused = run(tmp_path, token, "pull", url, str(tmp_path / "other"))
        assert (code, refused["error"]["code"]) == (1, "storage_unavailable")
        assert "no secure connection" in refused["error"]["message"]
    for path in table.glob("*.parquet"):
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()

"""Repositories of a real lakeFS, with tables that delta-rs writes through its gateway.

A repository knows how it is reached in every way: through the S3 gateway by those
who write, through the REST API by those who read, and behind lakeFS's back in the
blockstore, where everything is a plain file on local disk and on the S3 server alike.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.storage import open_store
from lakeferry.storage.lakefs import LakeFSStore
from tests.support.servers import LakeFSServer, S3Server

GROUP = (pytest.mark.lakefs, pytest.mark.xdist_group("lakefs"))
BLOCKSTORES = [pytest.param("lakefs", marks=GROUP), pytest.param("lakefs_on_s3", marks=GROUP)]
"""The fixtures of the two servers, to parametrise :func:`new_repository` with."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository with the branch ``main``.

    ``blocks`` are the options with which its blockstore is read; ``buckets`` is the
    folder of the S3 server, if that is what the blockstore is.
    """

    server: LakeFSServer
    name: str
    blocks: dict[str, str]
    buckets: Path | None = None

    @property
    def options(self) -> dict[str, str]:
        return {
            "lakefs_endpoint": self.server.endpoint,
            "lakefs_access_key_id": self.server.access_key,
            "lakefs_secret_access_key": self.server.secret_key,
            **self.blocks,
        }

    @property
    def variables(self) -> dict[str, str]:
        """The environment that says the same."""
        return {
            "LAKECTL_SERVER_ENDPOINT_URL": self.server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": self.server.access_key,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": self.server.secret_key,
            **self.blocks,
        }

    @property
    def gateway_options(self) -> dict[str, str]:
        return {**self.server.gateway.environment(), "AWS_CONDITIONAL_PUT": "etag"}

    def uri(self, ref: str = "main", path: str = "t") -> str:
        return f"lakefs://{self.name}/{ref}/{path}"

    def gateway_uri(self, ref: str = "main", path: str = "t") -> str:
        """Return what those who go through the gateway call a table."""
        return f"s3://{self.name}/{ref}/{path}"

    def store(self, ref: str = "main", path: str = "t", **options: str) -> LakeFSStore:
        found = open_store(self.uri(ref, path), {**self.options, **options})
        assert isinstance(found, LakeFSStore)
        return found

    # --- Writing, through the gateway -----------------------------------------------

    def append(self, *ids: int, branch: str = "main", path: str = "t") -> None:
        """Add rows to a table, or make it, in one version; two files of them, or one."""
        rows = pa.table({"id": pa.array(ids, pa.int64()), "day": [f"a b/{i % 2}" for i in ids]})
        write_deltalake(
            self.gateway_uri(branch, path),
            rows,
            mode="append",
            partition_by=["day"],
            storage_options=self.gateway_options,
        )

    def delta_rs(self, ref: str = "main", path: str = "t") -> DeltaTable:
        """Open a table with delta-rs."""
        return DeltaTable(self.gateway_uri(ref, path), storage_options=self.gateway_options)

    def upload(self, objects: Mapping[str, bytes], branch: str = "main", path: str = "t") -> None:
        """Put objects below a path."""
        gateway = open_store(self.gateway_uri(branch, path), self.gateway_options)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: gateway.put(name, objects[name]), objects))

    def objects(self, branch: str = "main", path: str = "t") -> dict[str, bytes]:
        """Return all objects below a path, as :meth:`upload` takes them; no folders of Spark's."""
        gateway = open_store(self.gateway_uri(branch, path), self.gateway_options)
        names = [name for name in self.names(branch, path) if not name.endswith("/")]
        return {name: gateway.get(name) for name in names}

    def delete(self, name: str, branch: str = "main", path: str = "t") -> None:
        """Delete an object."""
        open_store(self.gateway_uri(branch, path), self.gateway_options).delete_many([name])

    # --- lakeFS's own verbs ---------------------------------------------------------

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST API below the repository."""
        return self.server.call(method, f"/repositories/{self.name}{path}", body)

    def commit(self, branch: str = "main") -> str:
        """Commit what is staged on a branch, and return the commit's id."""
        found: str = self.call("POST", f"/branches/{branch}/commits", {"message": "rows"})["id"]
        return found

    def branch(self, name: str, source: str = "main") -> None:
        """Make a branch."""
        self.call("POST", "/branches", {"name": name, "source": source})

    def tag(self, name: str, ref: str = "main") -> None:
        """Make a tag."""
        self.call("POST", "/tags", {"id": name, "ref": ref})

    def merge(self, source: str, into: str = "main") -> str:
        """Merge a branch, and return the commit's id."""
        found: str = self.call("POST", f"/refs/{source}/merge/{into}", {})["reference"]
        return found

    def revert(self, ref: str, branch: str = "main", *, parent: int = 0) -> str:
        """Take a commit back by one more commit, and return that one's id.

        Of a merge, ``parent`` says which side stays: 1 for the branch that it was made on.
        """
        self.call("POST", f"/branches/{branch}/revert", {"ref": ref, "parent_number": parent})
        return self.head(branch)

    def import_from(self, prefix: str, path: str = "t") -> str:
        """Have lakeFS take over objects where they are, and return the id of its commit."""
        where = {"path": prefix, "destination": f"{path}/", "type": "common_prefix"}
        body = {"paths": [where], "commit": {"message": "imported"}}
        begun = self.call("POST", "/branches/main/import", body)["id"]
        for _ in range(600):
            status = self.call("GET", f"/branches/main/import?id={begun}")
            assert "error" not in status, status
            if status["completed"]:
                break
            time.sleep(0.05)
        found: str = status["commit"]["id"]
        return found

    def head(self, ref: str = "main") -> str:
        """Return the id of the commit that a ref means."""
        commits = self.call("GET", f"/refs/{quote(ref, safe='')}/commits?amount=1")["results"]
        found: str = commits[0]["id"]
        return found

    # --- The blockstore, behind lakeFS's back ---------------------------------------

    def address(self, name: str, ref: str = "main", path: str = "t") -> str:
        """Return where lakeFS says that the bytes of an object are."""
        key = quote(f"{path}/{name}", safe="")
        found: str = self.call("GET", f"/refs/{ref}/objects/stat?path={key}")["physical_address"]
        return found

    def names(self, ref: str = "main", path: str = "t") -> list[str]:
        """Return the names of all objects below a path; a page of them at most."""
        found = self.call("GET", f"/refs/{ref}/objects/ls?amount=1000&prefix={quote(path)}/")
        assert not found["pagination"]["has_more"]
        return [each["path"].removeprefix(f"{path}/") for each in found["results"]]

    def file(self, address: str) -> Path:
        """Return the plain file of an address, a URI of lakeFS's or of ours."""
        scheme, _, rest = address.partition(":")
        if scheme == "s3":
            assert self.buckets is not None
            return self.buckets / rest.lstrip("/")
        assert scheme in ("local", "file"), address
        return Path(f"/{rest.lstrip('/')}")

    @property
    def folder(self) -> Path:
        """Where the blockstore keeps the repository; something has to be in it."""
        first = self.call("GET", "/refs/main/objects/ls?amount=1")["results"][0]
        file = self.file(first["physical_address"])
        return next(above for above in file.parents if above.name == self.name)

    @property
    def exported(self) -> dict[str, bytes]:
        """Everything that exports have left in the repository's own place, by its name there."""
        top = self.folder / "_lakefs" / "exported"
        return {
            str(file.relative_to(top)): file.read_bytes()
            for file in sorted(top.rglob("*"))
            if file.is_file()
        }


def new_repository(fixture: str, get: Callable[[str], Any]) -> Repository:
    """Make a repository on the server that a fixture of :data:`BLOCKSTORES` names.

    ``get`` is pytest's ``getfixturevalue``.
    """
    server: LakeFSServer = get(fixture)
    name = f"repo-{uuid.uuid4().hex[:12]}"
    server.create_repository(name)
    if fixture == "lakefs":
        return Repository(server, name, {})
    gateway: S3Server = get("versitygw")
    return Repository(server, name, gateway.environment(), gateway.folder)

"""Object stores, local disk and lakeFS: settings that are wrong, and places that can't be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from lakeferry.storage import open_store
from tests.support import components
from tests.support.lake import ORDERS
from tests.support.lakefs_server import KEY, OurLakeFS
from tests.support.remedies import Witness, follows, retried
from tests.support.servers import free_port, versitygw

T = "{lake}/t"
S3 = "inspect|s3://bucket/t|--storage-option|"

retried(
    "cloud_clients.py: write a number and a unit, such as 500ms, 10s or 2m",
    f"{S3}retry_timeout=soon",
    f"inspect|{T}|--storage-option|retry_timeout=10s",
)


@contextmanager
def _lakefs(witness: Witness) -> Iterator[tuple[OurLakeFS, str, dict[str, str]]]:
    """Give a lakeFS with a table, the table's URI, and the variables that name the server."""
    witness.lake.make("t")
    folder = witness.lake.folder / "blocks"
    folder.mkdir()
    with OurLakeFS(folder) as server:
        top = witness.lake.folder / "t"
        for file in sorted(top.rglob("*")):
            if file.is_file():
                server.put(f"t/{file.relative_to(top).as_posix()}", file.read_bytes())
        names = {
            "LAKECTL_SERVER_ENDPOINT_URL": server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": server.options["lakefs_access_key_id"],
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": server.options["lakefs_secret_access_key"],
        }
        yield server, "lakefs://repo/main/t", names


@follows(
    "lakefs_api.py: set LAKECTL_SERVER_ENDPOINT_URL to its address, or give "
    "--storage-option lakefs_endpoint=https://…",
    "lakefs_api.py: give the access key id and its secret both as options or both as variables",
    "lakefs_api.py: write lakefs://repository/ref/path; a ref is a branch, a tag or a commit",
    "storage/lakefs.py: write lakefs://repository/ref/path; a ref is a branch, a tag or a commit",
    "uris.py: write lakefs://repository/ref/path; a ref is a branch, a tag or a commit",
    "rest_request.py: write https://host, or http://host",
    "rest_request.py: set {} to a {} that is valid now",
    "rest_request.py: check {}, and the service's own log",
    "rest_request.py: check that it is running, and check {}",
    "rest_request.py: check {}: another program seems to answer there",
)
def lakefs_is_named_as_it_has_to_be(witness: Witness) -> None:
    with _lakefs(witness) as (server, table, names):
        endpoint = ("--storage-option", f"lakefs_endpoint={server.endpoint}")
        witness.refused("inspect", table)
        witness.refused("inspect", table, *endpoint, LAKECTL_CREDENTIALS_ACCESS_KEY_ID=KEY)
        witness.refused("inspect", table, *endpoint)
        witness.refused("inspect", "lakefs://repo", **names)
        witness.refused("inspect", "lakefs:///main/t", **names)
        server.next_replies.append((400, {"message": "invalid reference"}))
        witness.refused("inspect", table, **names)
        told = {"LAKECTL_SERVER_ENDPOINT_URL": "127.0.0.1"}
        witness.refused("inspect", table, **(names | told))
        closed = {"LAKECTL_SERVER_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        witness.refused("inspect", table, **(names | closed))
        # The program's own server is no lakeFS.
        other = {"LAKECTL_SERVER_ENDPOINT_URL": witness.server.url}
        witness.refused("inspect", table, **(names | other))
        server.next_replies.append((418, {"message": "another service"}))
        witness.refused("inspect", table, **names)
        witness.done("inspect", table, **names)


@follows(
    "action_file.py: write a repository's name, lakefs://repository or lakefs://repository/branch",
    "action_file.py: name the branch once",
    "action_file.py: give --url the address that lakeferry serve prints, such as https://host:port",
    "action_file.py: commit or reset them first, or name another branch with --branch",
    "rest_request.py: <self.owner>",
)
def a_repository_of_lakefs_is_told_of_the_server(witness: Witness) -> None:
    with _lakefs(witness) as (server, _, names):
        url, init = ("--url", "https://host:1"), ("lakefs", "init")
        witness.refused(*init, "s3://repo", *url, **names)
        witness.refused(*init, "lakefs://repo/main", "--branch", "other", *url, **names)
        witness.refused(*init, "lakefs://repo/main", "--url", "host", **names)
        server.next_replies.append((403, {"message": "insufficient permissions"}))
        witness.refused(*init, "lakefs://repo/main", *url, **names)
        witness.refused(*init, "lakefs://repo/main", *url, **names)
        server.staged.clear()
        witness.done(*init, "lakefs://repo/main", *url, "--dry-run", **names)


@follows(
    "local_errors.py: a file and a folder can't have the same name there, and no part of a name "
    "may have more than 255 bytes"
)
def a_name_that_is_too_long_is_shortened(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.refused("redirect", "enable", table, witness.lake.uri("x" * 300))
    witness.done("redirect", "enable", table, witness.lake.uri("x" * 200))


@follows("local_errors.py: give a folder, or a path where nothing exists yet")
def a_file_is_no_target(witness: Witness) -> None:
    table, file = witness.lake.make("t"), witness.lake.uri("notes.txt")
    open_store(witness.lake.uri("")).put("notes.txt", b"x")
    assert "is a file" in witness.refused("redirect", "enable", table, file)["message"]
    witness.done("redirect", "enable", table, witness.lake.uri("n"))


@follows("transfer.py: write lakeferry {} {}")
def arguments_change_places(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/swapped"
    words = ("--token", witness.token("--scope", "write"))
    witness.refused("push", url, table, *words)
    witness.done("push", table, url, *words)
    copy = witness.lake.uri("c")
    witness.refused("pull", copy, url, *words)
    witness.done("pull", url, copy, *words)


@follows("local_store.py: use 'lakeferry serve', which makes URLs for them")
def a_server_hands_out_what_local_disk_can_not_sign(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/signed"
    words = ("--token", witness.token("--scope", "write"))
    witness.raises(partial(open_store(table).sign, "GET", "x", 60))
    witness.done("push", table, url, *words)
    witness.done("pull", url, witness.lake.uri("c"), *words)


@follows(
    "cloud_clients.py: check --storage-option and the environment's variables",
    "cloud_clients.py: give access_key_id and secret_access_key together",
    'cloud_clients.py: run eval "$(aws configure export-credentials --format env)" first',
    "cloud_errors.py: check the access key, its secret, the region and this machine's clock",
    "cloud_errors.py: check that the store is running and that its endpoint is right, then try "
    "again",
)
def a_bucket_is_opened_with_settings_that_fit(witness: Witness) -> None:
    folder = witness.lake.folder / "s3"
    folder.mkdir()
    with versitygw(components.require("versitygw"), folder) as server:
        bucket = server.create_bucket("remedies")
        assert server.folder is not None
        ORDERS.write(open_store(f"{server.folder}/{bucket.name}/t"))
        right, table = server.environment(), f"{bucket.uri}/t"
        key = "aws_access_key_id"
        nobody = {name: value for name, value in right.items() if "KEY" not in name}
        option, quick = "--storage-option", ("--storage-option", "retry_timeout=1s")
        witness.refused("inspect", table, option, "aws_allow_http=perhaps", **right)
        witness.refused("inspect", table, option, f"{key}={right[key.upper()]}", **nobody)
        witness.refused("inspect", table, **(nobody | {"AWS_PROFILE": "nobody"}))
        witness.refused("inspect", table, **(right | {"AWS_SECRET_ACCESS_KEY": "wrong"}))
        nowhere = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        witness.refused("inspect", table, *quick, **(right | nowhere))
        witness.done("inspect", table, **right)

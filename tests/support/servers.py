"""Real servers on loopback for the tests: an S3 server, lakeFS and PostgreSQL.

Each is a context manager that gives a description of the running server. A
server listens on a free port of 127.0.0.1, keeps everything under the folder it
is given, is ready when the context is entered, and ends with it, or with the
process that started it.
"""

from __future__ import annotations

import base64
import ctypes
import http.client
import json
import os
import pwd
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lakeferry.storage.sigv4 import signed_anew
from tests.support.certificates import Certificate

READY_WITHIN_S = 60
START_ATTEMPTS = 3
WEBHOOK_SECRET = "lakeferry-webhook-secret"
"""What lakeFS's actions find as the secret of our webhook."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server, or what speaks like one."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    folder: Path | None
    """Where versitygw keeps buckets as folders and objects as plain files."""
    certificate: Certificate | None = None
    """What it is known by where it speaks https."""

    def environment(self) -> dict[str, str]:
        """The usual variables for a client in another process."""
        return {
            **self.settings(),
            **(self.certificate.environment() if self.certificate else {}),
        }

    def settings(self) -> dict[str, str]:
        """What an S3 client has to know."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def create_bucket(self, name: str) -> S3Bucket:
        """Make a bucket through the S3 API: a folder made by hand has no ACL.

        Tests do so hundreds of times, so no program is started for it.
        """
        now = datetime.now(UTC)
        terms = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.access_key}/{now:%Y%m%d}/{self.region}/s3/aws4_request",
            "X-Amz-Date": f"{now:%Y%m%dT%H%M%SZ}",
            "X-Amz-Expires": "600",
        }
        url = signed_anew(f"{self.endpoint}/{name}?{urlencode(terms)}", self.secret_key, "PUT")
        known = self.certificate.authority if self.certificate else None
        context = ssl.create_default_context(cafile=known) if known else None
        request = urllib.request.Request(url, method="PUT")
        with urllib.request.urlopen(request, context=context, timeout=READY_WITHIN_S):
            return S3Bucket(self, name)


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket on a running server."""

    server: S3Server
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def storage_options(self) -> dict[str, str]:
        """What delta-rs and Polars take as ``storage_options``."""
        return {**self.server.settings(), "AWS_CONDITIONAL_PUT": "etag"}


@dataclass(frozen=True, slots=True)
class LakeFSServer:
    """A running lakeFS: its REST API, and its S3 gateway at the same address."""

    endpoint: str
    access_key: str
    secret_key: str
    namespaces: str
    """What a repository's storage namespace begins with."""

    @property
    def gateway(self) -> S3Server:
        """The S3 gateway: a repository is a bucket, a branch the first folder."""
        return S3Server(self.endpoint, self.access_key, self.secret_key, "us-east-1", None)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST API; ``path`` follows ``/api/v1``. What isn't JSON is a text."""
        key = base64.b64encode(f"{self.access_key}:{self.secret_key}".encode()).decode()
        request = urllib.request.Request(
            f"{self.endpoint}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            content = response.read()
            is_json = response.headers.get_content_type() == "application/json"
        return json.loads(content) if content and is_json else content.decode() or None

    def create_repository(self, name: str) -> S3Bucket:
        """Make a repository with the branch ``main``."""
        self.call(
            "POST",
            "/repositories",
            {"name": name, "storage_namespace": f"{self.namespaces}{name}"},
        )
        return S3Bucket(self.gateway, name)


@dataclass(frozen=True, slots=True)
class PostgreSQLServer:
    """A running PostgreSQL."""

    programs: Path
    port: int
    user: str
    password: str

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}"

    def execute(self, database: str, statement: str) -> str:
        """Run a statement outside of any transaction, and return what ``psql`` prints."""
        psql = [str(self.programs / "psql"), "--no-psqlrc", "--tuples-only", "--quiet"]
        ended = subprocess.run(
            [*psql, "--no-align", "--dbname", self.url(database), "--command", statement],
            capture_output=True,
            check=True,
            text=True,
        )
        return ended.stdout.strip()


@contextmanager
def versitygw(
    binary: Path,
    folder: Path,
    *,
    read_only_of: S3Server | None = None,
    certificate: Certificate | None = None,
    keeps_connections: bool = False,
) -> Iterator[S3Server]:
    """Run versitygw with its buckets in ``folder / "buckets"``, or with another's to read only.

    With a certificate it speaks https and nothing else. It closes a connection after each answer
    unless it ``keeps_connections``, as other S3 servers do.
    """
    if read_only_of is None:
        buckets, permissions = folder / "buckets", []
        buckets.mkdir(parents=True)
    else:
        assert read_only_of.folder is not None
        buckets, permissions = read_only_of.folder, ["--readonly"]
    access_key, secret_key, region = "lakeferry", "lakeferry-secret", "us-east-1"
    tls = (
        ["--cert", str(certificate.certificate), "--key", str(certificate.key)]
        if certificate
        else []
    )
    scheme = "https" if certificate else "http"

    kept = ["--keep-alive"] if keeps_connections else []

    def launch(port: int) -> Launch:
        options = ["--region", region, "--health", "/health", "--quiet", *permissions, *tls, *kept]
        return Launch(
            [str(binary), "--port", f"127.0.0.1:{port}", *options, "posix", str(buckets)],
            {"ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key},
        )

    with _running(launch, folder, _http("/health", certificate)) as port:
        endpoint = f"{scheme}://127.0.0.1:{port}"
        yield S3Server(endpoint, access_key, secret_key, region, buckets, certificate)


@contextmanager
def rclone_s3(folder: Path) -> Iterator[S3Server]:
    """Run rclone's S3 server, which takes conditional puts as if they had no condition."""
    buckets = folder / "buckets"
    buckets.mkdir(parents=True)
    access_key, secret_key = "lakeferry", "lakeferry-secret"

    def launch(port: int) -> Launch:
        rclone = str(Path(sys.executable).parent / "rclone")
        address = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{access_key},{secret_key}"]
        settings = ["--config", str(folder / "rclone.conf")]
        return Launch([rclone, "serve", "s3", *address, *settings, str(buckets)], {})

    with _running(launch, folder, _listens) as port:
        endpoint = f"http://127.0.0.1:{port}"
        yield S3Server(endpoint, access_key, secret_key, "us-east-1", buckets)


@contextmanager
def lakefs_quickstart(binary: Path, folder: Path) -> Iterator[LakeFSServer]:
    """Run lakeFS with its blocks on local disk, under ``folder / "data"``."""

    def launch(port: int) -> Launch:
        return Launch(
            [str(binary), "run", "--quickstart"],
            {
                "LAKEFS_LISTEN_ADDRESS": f"127.0.0.1:{port}",
                "LAKEFS_BLOCKSTORE_LOCAL_PATH": str(folder / "data"),
                **_lakefs_folders(folder),
            },
        )

    folder.mkdir(parents=True, exist_ok=True)
    with _running(launch, folder, _http("/_health")) as port:
        # The key that quickstart always has; lakeFS's documentation shows it.
        yield LakeFSServer(
            f"http://127.0.0.1:{port}",
            "AKIAIOSFOLQUICKSTART",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "local://",
        )


@contextmanager
def lakefs_on_s3(binary: Path, folder: Path, bucket: S3Bucket) -> Iterator[LakeFSServer]:
    """Run lakeFS with its blocks in a bucket."""
    access_key, secret_key = "AKIALAKEFERRYTESTS00", "lakeferry-lakefs-secret"
    store = bucket.server
    configuration = {
        "database": {"type": "local"},
        "auth": {"encrypt": {"secret_key": "lakeferry-tests"}},
        "blockstore": {
            "type": "s3",
            "s3": {
                "endpoint": store.endpoint,
                "force_path_style": True,
                "discover_bucket_region": False,
                "region": store.region,
                "credentials": {
                    "access_key_id": store.access_key,
                    "secret_access_key": store.secret_key,
                },
            },
        },
        "installation": {
            "user_name": "admin",
            "access_key_id": access_key,
            "secret_access_key": secret_key,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    # JSON is YAML too.
    (folder / "lakefs.yaml").write_text(json.dumps(configuration))

    def launch(port: int) -> Launch:
        return Launch(
            [str(binary), "run", "--config", str(folder / "lakefs.yaml")],
            {"LAKEFS_LISTEN_ADDRESS": f"127.0.0.1:{port}", **_lakefs_folders(folder)},
        )

    with _running(launch, folder, _http("/_health")) as port:
        endpoint = f"http://127.0.0.1:{port}"
        yield LakeFSServer(endpoint, access_key, secret_key, f"{bucket.uri}/")


def _lakefs_folders(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "LAKEFS_DATABASE_LOCAL_PATH": str(folder / "kv"),
        "LAKEFS_COMMITTED_LOCAL_CACHE_DIR": str(folder / "cache"),
        "LAKEFS_STATS_ENABLED": "false",
        "LAKEFS_SECURITY_CHECK_LATEST_VERSION": "false",
        "LAKEFSACTION_LAKEFERRY_WEBHOOK_SECRET": WEBHOOK_SECRET,
    }


@contextmanager
def postgresql(programs: Path) -> Iterator[PostgreSQLServer]:
    """Run PostgreSQL with a cluster of its own; root has somebody else run it."""
    account = _unprivileged()
    user, password = "lakeferry", "lakeferry-secret"
    # Not where pytest keeps its folders: nobody but their owner gets through to those.
    with tempfile.TemporaryDirectory(prefix="lakeferry-postgresql-") as scratch:
        folder = Path(scratch)
        (folder / "password").write_text(password)
        if account is not None:
            os.chown(folder / "password", *account)
            os.chown(folder, *account)
        initdb = [str(programs / "initdb"), "--pgdata", "data", "--username", user]
        more = ["--auth", "scram-sha-256", "--pwfile", "password", "--no-sync", "--no-locale"]
        made = subprocess.run(
            [*initdb, *more, "--encoding", "UTF8"],
            cwd=folder,
            capture_output=True,
            text=True,
            **_as(account),
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")

        def launch(port: int) -> Launch:
            settings = {
                "listen_addresses": "127.0.0.1",
                "port": port,
                "unix_socket_directories": str(folder),
                "fsync": "off",
            }
            flags = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
            # To be interrupted ends every connection; to be terminated would wait for them.
            return Launch(
                [str(programs / "postgres"), "-D", str(folder / "data"), *flags],
                {},
                account,
                signal.SIGINT,
            )

        def is_ready(port: int) -> bool:
            question = ["-h", "127.0.0.1", "-p", str(port), "-q"]
            return subprocess.run([programs / "pg_isready", *question]).returncode == 0

        with _running(launch, folder, is_ready) as port:
            yield PostgreSQLServer(programs, port, user, password)


def _unprivileged() -> tuple[int, int] | None:
    """The user and group for a server that refuses to be run by root, if that is who we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise RuntimeError("there is no user to run PostgreSQL as")


# --- Processes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started on a given port."""

    command: list[str]
    variables: dict[str, str]
    account: tuple[int, int] | None = None
    """The user and group that run it, where it isn't we ourselves."""
    end: signal.Signals = signal.SIGTERM


@contextmanager
def _running(
    launch: Callable[[int], Launch], folder: Path, is_ready: Callable[[int], bool]
) -> Iterator[int]:
    """Run a server until the context ends; give its port once it is ready.

    Between finding a free port and listening on it somebody else may take it;
    the server then ends at once, and another port is tried.
    """
    log = folder / "server.log"
    for _ in range(START_ATTEMPTS):
        port = free_port()
        start = launch(port)
        with log.open("wb") as output:
            process = subprocess.Popen(
                start.command,
                env={**_without_cloud_variables(), **start.variables},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
                **_as(start.account),
            )
        try:
            if _becomes_ready(process, port, is_ready):
                yield port
                return
        finally:
            _stop(process, start.end)
    raise RuntimeError(f"the server didn't start:\n{log.read_text(errors='replace')[-4000:]}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _without_cloud_variables() -> dict[str, str]:
    """The environment, less what would lead a server to a real cloud."""
    prefixes = ("AWS_", "AZURE_", "GOOGLE_", "LAKEFS_", "LAKECTL_", "PG", "VGW_")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}


def _as(account: tuple[int, int] | None) -> dict[str, Any]:
    """What :mod:`subprocess` wants to know to run something as somebody else."""
    return {"user": account[0], "group": account[1], "extra_groups": []} if account else {}


def _becomes_ready(
    process: subprocess.Popen[bytes], port: int, is_ready: Callable[[int], bool]
) -> bool:
    """Wait until the server answers; false if it ended or took too long."""
    deadline = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        if is_ready(port):
            return True
        time.sleep(0.05)
    return False


def _listens(port: int) -> bool:
    """Whether somebody takes connections at a port."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _http(path: str, certificate: Certificate | None = None) -> Callable[[int], bool]:
    """Whether a server answers at that path; by https if it has a certificate."""

    def connect(port: int) -> http.client.HTTPConnection:
        if certificate is None:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        trusted = ssl.create_default_context(cafile=certificate.authority)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trusted)

    def is_ready(port: int) -> bool:
        connection = connect(port)
        try:
            connection.request("GET", path)
            return connection.getresponse().status in (200, 204)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return is_ready


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """Have Linux end the server when the tests are killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)

"""Our Unity Catalog with its tables in a bucket, and credentials that expire all the time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lakeferry.storage import credential_renewal
from tests.support.servers import S3Bucket
from tests.support.unity_server import OurServer, UnityServer

LIFE_MS = 60_000
"""How long a key is valid."""


@contextmanager
def on_s3(unity: UnityServer, bucket: S3Bucket) -> Iterator[OurServer]:
    """Let the server issue the keys of a bucket, by a clock that runs fast.

    We have no key of our own. Each look at the clock takes half the life of a key.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
        patch.setenv("AWS_REGION", bucket.server.region)
        unity.name_in(patch)
        ticks = itertools.count(time.time_ns() // 1_000_000, LIFE_MS // 2)
        patch.setattr(credential_renewal, "_now_ms", lambda: next(ticks))
        server = unity.ours
        server.storage_root = f"{bucket.uri}/uc"
        key = {
            "access_key_id": bucket.server.access_key,
            "secret_access_key": bucket.server.secret_key,
            "session_token": "",
        }
        answers = server._reply

        def reply(*request: object) -> object:
            ends_ms = next(ticks) + LIFE_MS
            server.credentials = (200, {"aws_temp_credentials": key, "expiration_time": ends_ms})
            return answers(*request)  # type: ignore[arg-type]

        patch.setattr(server, "_reply", reply)
        yield server

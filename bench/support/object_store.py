"""An S3 server for a benchmark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers import S3Server


@contextmanager
def s3_server() -> Iterator[tuple[S3Server, Path]]:
    """Run versitygw over https, which all processes trust that begin now; give its folder, too.

    It keeps connections open, as every store does.
    """
    from tests.support import certificates, components, servers

    binary = components.require("versitygw")
    with ExitStack() as held:
        folder = Path(
            held.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("LAKEFERRY_BENCH")))
        )
        known = certificates.certificate(folder / "certificate")
        os.environ |= known.environment()
        server = held.enter_context(
            servers.versitygw(binary, folder, certificate=known, keeps_connections=True)
        )
        yield server, folder

"""What a connection that can't be made is called, and what its user is told to do."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress

import aiohttp
import pytest
from yarl import URL

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.client.remote_dataset import translated


def test_a_server_without_a_certificate_that_we_trust_is_named() -> None:
    """One that has no certificate at all ends the handshake, as one with a wrong one does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = URL(f"https://127.0.0.1:{listener.getsockname()[1]}/x")

        def answer() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(client, server_side=True)

        answering = threading.Thread(target=answer)
        answering.start()

        async def ask() -> None:
            async with aiohttp.ClientSession() as session:
                with translated(url):
                    await session.get(url)

        with pytest.raises(StorageUnavailable, match="no secure connection") as refused:
            asyncio.run(ask())
        answering.join(30)
    assert "set SSL_CERT_FILE to that file" in (refused.value.remedy or "")
    assert refused.value.fields["passing"] is False

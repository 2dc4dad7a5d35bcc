"""A certificate for a server on loopback, signed by an authority of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a server's certificate, and of the authority that clients have to trust."""

    authority: Path
    certificate: Path
    key: Path

    def environment(self) -> dict[str, str]:
        """The variables by which programs trust it: Python's and Go's, rustls, and AWS's own."""
        return {"SSL_CERT_FILE": str(self.authority), "AWS_CA_BUNDLE": str(self.authority)}


def certificate(folder: Path) -> Certificate:
    """Make a certificate for 127.0.0.1 with OpenSSL's program, valid for two days."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, made, key = (folder / name for name in ("ca.crt", "server.crt", "server.key"))
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl(
        *("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=authority of a test"),
        *("-keyout", str(folder / "ca.key"), "-out", str(authority)),
    )
    _openssl(
        *("req", *new_key, "-subj", "/CN=127.0.0.1"),
        *("-keyout", str(key), "-out", str(folder / "server.csr")),
    )
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        *("x509", "-req", "-days", "2", "-in", str(folder / "server.csr"), "-extfile", str(names)),
        *("-CA", str(authority), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"),
        *("-out", str(made)),
    )
    return Certificate(authority, made, key)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)

"""Certificates for tests, made by the program `openssl`: an authority, a server's and a client's."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import require

_DAYS = "2"


@dataclass(frozen=True)
class Certificates:
    """Where the files are."""

    authority: Path
    certificate: Path
    key: Path
    locked_key: Path  # the same key, with the password `secret`
    client_certificate: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make all of them, for 127.0.0.1."""
    openssl = _Openssl(str(require(_found(), "openssl")), directory)
    openssl(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        _DAYS,
        "-subj",
        "/CN=authority",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout",
        "ca.key",
        "-out",
        "ca.crt",
    )
    (directory / "names").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:localhost\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"  # Python insists on these since 3.13
    )
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            _DAYS,
            "-extfile",
            "names",
            "-out",
            f"{name}.crt",
        )
    openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", "server.key", "-out", "locked.key")
    files = ("ca.crt", "server.crt", "server.key", "locked.key", "client.crt", "client.key")
    return Certificates(*(directory / name for name in files))


def _found() -> Path | None:
    path = shutil.which("openssl")
    return Path(path) if path else None


@dataclass(frozen=True)
class _Openssl:
    program: str
    directory: Path

    def __call__(self, *words: str) -> None:
        subprocess.run([self.program, *words], cwd=self.directory, check=True, capture_output=True, timeout=60)

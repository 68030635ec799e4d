"""Self-signed certificates for this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> tuple[str, str]:
    """Makes a certificate for localhost: (its file, its key's file); skips the test if openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key

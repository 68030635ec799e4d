"""A certificate for this machine, signed by itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> tuple[str, str]:
    """(the files of a certificate for localhost, of its key); skips the test where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*words, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key

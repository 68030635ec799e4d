"""Fixtures that run commands without any credentials, clusters or settings of the user who runs the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amazon_cloud import AmazonCloud, serve_amazon
from container_programs import Programs
from google_cloud import GoogleCloud, serve_google, write_key
from kube_fixtures import namespace, testbed

import steppe as steppe_package
from steppe.cli import main
from steppe.clusters import registry

__all__ = ["namespace", "testbed"]

TESTBED_CACHE = Path.home() / ".cache" / "kube-testbed"
CLOUD_VARIABLES = ("AWS_", "GOOGLE_", "CLOUDSDK_", "GCLOUD_", "KUBE", "STEPPE_", "BOTO_")


@dataclass(frozen=True)
class Answer:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on a machine without any settings."""
    kept = {"STEPPE_KUBE_TESTBED", "STEPPE_TEST_KUBECONFIG", "KUBE_TESTBED_DIR", "KUBE_TESTBED_CACHE", "STEPPE_CACHE"}
    for name in os.environ:
        if name.startswith(CLOUD_VARIABLES) and name not in kept:
            monkeypatch.delenv(name)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    # All home folders share the images of the testbed.
    monkeypatch.setenv("KUBE_TESTBED_CACHE", os.environ.get("KUBE_TESTBED_CACHE") or str(TESTBED_CACHE))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(home / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # No test may reach a real cloud, even by mistake.
    monkeypatch.setenv("STEPPE_GKE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    # Also applies to the commands in a kubeconfig, which run in any folder.
    monkeypatch.setenv("PYTHONPATH", str(Path(steppe_package.__file__).resolve().parents[1]))
    monkeypatch.chdir(work)
    # Providers keep their clients, which would still point to another test's cloud.
    registry.provider.cache_clear()
    return work


@pytest.fixture
def steppe(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in the current folder."""

    def command(*words: str) -> Answer:
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return command


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Answers the next question of a command."""
    import io

    def answer(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))

    return answer


@pytest.fixture(scope="session")
def key_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A service account's key, whose sign-in is at URL."""
    return write_key(tmp_path_factory.mktemp("key") / "key.json", "URL").read_text()


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    """Google's cloud, on loopback."""
    pytest.importorskip("google.cloud.container_v1", reason="google-cloud-container is not installed")
    from google.auth import credentials

    # The library also asks a fixed address of Google's where the account may work, which is not on loopback.
    boundary = getattr(credentials, "CredentialsWithRegionalAccessBoundary", None)
    if boundary is not None:
        monkeypatch.setattr(boundary, "_is_regional_access_boundary_lookup_required", lambda self: False)
    cloud = GoogleCloud()
    server = serve_google(cloud)
    monkeypatch.setenv("STEPPE_GKE_ENDPOINT", cloud.url)
    yield cloud
    server.shutdown()
    server.server_close()


@pytest.fixture
def key(google: GoogleCloud, key_text: str, tmp_path: Path) -> Path:
    """The key of a service account of that cloud."""
    path = tmp_path / "key.json"
    path.write_text(key_text.replace("URL/token", f"{google.url}/token"))
    return path


@pytest.fixture
def project(steppe: Callable[..., Answer], key: Path, here: Path) -> Path:
    """A project that is linked to the cloud project "cloud-7"."""
    assert steppe("init", "-r", "cloud-7", "--key", str(key)).code == 0
    return here


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A machine without programs, except those that a test installs."""
    made = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(made.folder))
    return made


@pytest.fixture(scope="session")
def amazon_serving() -> Iterator[AmazonCloud]:
    """Amazon's cloud on loopback, which takes seconds to start."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    pytest.importorskip("moto.server", reason="moto is not installed")
    with pytest.MonkeyPatch.context() as patched:
        # Amazon's own policies, which moto loads only on request.
        patched.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        # No client may look for the metadata server of a cloud machine.
        patched.setattr("moto.eks.models.ENDPOINT_TEMPLATE", "https://127.0.0.1:9")
        cloud = AmazonCloud()
        end = serve_amazon(cloud)
        yield cloud
        end()


@pytest.fixture
def amazon(amazon_serving: AmazonCloud, monkeypatch: pytest.MonkeyPatch) -> AmazonCloud:
    """Amazon's cloud without any objects, and a user who is signed in."""
    import requests

    requests.post(f"{amazon_serving.url}/moto-api/reset", timeout=30)
    for part in (amazon_serving.asked, amazon_serving.addons, amazon_serving.refusals):
        part.clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon_serving.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    return amazon_serving


@pytest.fixture
def client(amazon: AmazonCloud) -> Callable[[str], Any]:
    """Returns Amazon's client of a service, to inspect the result."""
    import boto3

    return boto3.Session(region_name="eu-west-1").client

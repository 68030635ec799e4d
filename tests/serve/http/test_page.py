from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from served import router, serving

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium; apt install chromium")


def browse(url, tmp_path, *words):
    """What the page has become after its scripts ran for a few seconds of its own time."""
    flags = ["headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "virtual-time-budget=6000"]
    flags += [f"user-data-dir={tmp_path / 'browser'}", "window-size=1100,1000"]
    command = [str(BROWSER), *(f"--{flag}" for flag in flags), *words, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def rewarded(served):
    for number in range(40):
        policy = served.infer(id=f"r{number}").json["parameters"]["policy"]
        reward = {"a": 21.5, "b": 187.25}[policy]
        served.post("/v2/models/pole/feedback", {"id": f"r{number}", "reward": reward})


def test_the_page_shows_routes_traffic_and_rewards(tmp_path):
    with serving(router(tmp_path), tmp_path) as served:
        rewarded(served)
        text = browse(served.url, tmp_path, "--dump-dom")
        if kept := os.environ.get("STEPPE_KEEP_SCREENSHOTS"):
            browse(served.url, tmp_path, f"--screenshot={Path(kept) / 'serving.png'}")
    assert "serving</span>" in text
    assert "epsilon_greedy" in text
    assert "★ best" in text
    assert "187.3" in text
    assert "21.5" in text
    assert "pole · Steppe endpoint" in text


def test_the_page_asks_for_the_token(tmp_path):
    with serving(router(tmp_path), tmp_path, token="a-token-of-enough-letters") as served:
        text = browse(served.url, tmp_path, "--dump-dom")
        if kept := os.environ.get("STEPPE_KEEP_SCREENSHOTS"):
            browse(served.url, tmp_path, f"--screenshot={Path(kept) / 'locked.png'}")
    assert "locked</span>" in text
    assert "epsilon_greedy" not in text


def test_the_page_may_load_nothing_from_elsewhere(two):
    policy = two.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in two.get("/").body.decode().replace("http-equiv", "")

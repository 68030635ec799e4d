from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from served import router, serving

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium; apt install chromium")


def browse(url, tmp_path, *words):
    """The page after its scripts have run for a few seconds of virtual time."""
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


LONG = "CartPole-v1-ppo-with-tuned-lr-first"


def test_a_long_branch_name_stays_on_one_line(tmp_path):
    numbers = {"requests": 123456, "feedback": 1200, "mean_reward": 467.25}
    branch = {"name": LONG, "share": 0.5, "probability": 0.45, "decisions": 1234, "is_best": True, **numbers}
    policy = {"name": LONG, "version": "294912-3fa2bc91", "pinned": False, "problem": "", **numbers}
    endpoint = {"name": "pole", "ledger_problem": "", "open_episodes": 0, "expired_episodes": 0, "queued": 0}
    endpoint |= {"dropped": 0, "policies": [policy], "shadows": []}
    endpoint |= {"routers": [{"name": "pole", "kind": "router", "bandit": "ucb1", "branches": [branch]}]}
    server = {"is_draining": False, "now": 9, "started": 1, "answers": 5, "refused": 0, "failed": 0}
    standing = {"endpoint": endpoint, "server": server | {"latency": {"p50": 0.001, "p99": 0.002}}}
    answers = f"window.fetch = async () => ({{ok: true, status: 200, json: async () => ({json.dumps(standing)})}});"
    measures = (
        "setTimeout(() => { for (const name of document.querySelectorAll('tbody th')) { const range = new Range();"
        "range.selectNodeContents(document.createTreeWalker(name, NodeFilter.SHOW_TEXT).nextNode());"
        "document.body.append('[' + new Set([...range.getClientRects()].map(each => each.top)).size + ' lines]'); } },"
        "1000);"
    )
    page = (resources.files("steppe.serve.http") / "page.html").read_text(encoding="utf-8")
    file = tmp_path / "page.html"
    file.write_text(page.replace("<script>", f"<script>{answers}{measures}</script><script>", 1))
    text = browse(file.as_uri(), tmp_path, "--window-size=1200,1000", "--dump-dom")
    assert re.findall(r"\[(\d+) lines\]", text) == ["1", "1"]


def test_the_page_asks_for_the_token(tmp_path):
    with serving(router(tmp_path), tmp_path, token="a-token-of-enough-letters") as served:
        text = browse(served.url, tmp_path, "--dump-dom")
        if kept := os.environ.get("STEPPE_KEEP_SCREENSHOTS"):
            browse(served.url, tmp_path, f"--screenshot={Path(kept) / 'locked.png'}")
    assert "locked</span>" in text
    assert "steppe serve printed the path of its file.</p>" in text
    assert "epsilon_greedy" not in text


def test_the_page_may_load_nothing_from_elsewhere(two):
    policy = two.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in two.get("/").body.decode().replace("http-equiv", "")

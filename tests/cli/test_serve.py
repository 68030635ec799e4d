from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from endpoints import save_policy, serve, write_router
from processes import Steppe, wait_until

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

TOKEN = "0123456789abcdef-secret"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_policy_is_served_until_a_signal_comes(shell: Steppe, number: signal.Signals) -> None:
    save_policy(shell.folder / "walk" / "policy")
    served = serve(shell, "walk")
    assert served.get("/v2/models/walk")["inputs"][0]["shape"] == [-1, 4]
    served.command.send(number)
    answer = served.command.answer()
    assert (answer.code, answer.err) == (0, "")
    first, second, last = answer.out.splitlines()
    assert first == f"serving walk at {served.url}; play with: steppe play --url {served.url} --environment CartPole-v1"
    assert second == f"watch it at {served.url}/ or by Prometheus at {served.url}/metrics; Ctrl-C ends it"
    assert re.fullmatch(r"ended after 0 answers in \d+ s; what was decided and rewarded is kept", last)


def test_the_serving_process_never_imports_jax(tmp_path: Path) -> None:
    program = (
        "import sys; import steppe.cli.serve, steppe.serve.server, steppe.serve.http.app, steppe.serve.loading; "
        "steppe.serve.loading.load_endpoint(sys.argv[1], start=sys.argv[2]); print('jax' in sys.modules)"
    )
    folder = save_policy(tmp_path / "walk")
    words = [sys.executable, "-c", program, str(folder), str(tmp_path)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


def test_an_operator_lists_pins_and_rolls_back_versions(shell: Steppe) -> None:
    folder = shell.folder / "walk"
    save_policy(folder, seed=1, timestep=100)
    served = serve(shell, "walk", "--token", TOKEN)
    save_policy(folder, seed=2, timestep=200)
    shell.environment["STEPPE_SERVE_TOKEN"] = TOKEN
    url = ("--url", served.url)
    news = shell("serve", "reload", *url)
    assert "is now served at version 200-" in news.out, news.err
    assert shell("serve", "reload", *url).out == "nothing is new\n"

    (policy,) = json.loads(shell("serve", "versions", *url, "--json").out)
    old, new = policy["versions"]
    assert (policy["version"], policy["pinned"]) == (new, False)
    assert shell("serve", "rollback", *url).out == f"policy walk is served at version {old} (pinned, after {new})\n"
    again = shell("serve", "rollback", *url)
    assert (again.code, again.err) == (
        2,
        f'error: policy "walk" has no version before {old}, so there is nothing to go back to\n',
    )
    listed = shell("serve", "versions", *url).out.splitlines()
    assert listed[1].split()[:3] == ["walk", old, "pinned"]
    assert shell("serve", "unpin", *url).out == f"policy walk is served at version {new} (not pinned, after {old})\n"
    assert shell("serve", "pin", new, *url).out == f"policy walk is served at version {new} (pinned)\n"
    wrong = shell("serve", "pin", new[:-1], *url)
    assert f'has no version "{new[:-1]}"; did you mean "{new}"?' in wrong.err


def test_an_operator_must_show_the_token(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    (shell.folder / "token").write_text(TOKEN)
    served = serve(shell, "walk", "--token-file", "token")
    assert "--token-file token\n" in served.command.out
    refused = shell("serve", "status", "--url", served.url)
    assert refused.code == 2
    assert "refused access" in refused.err
    assert "give its token by --token-file or STEPPE_SERVE_TOKEN" in refused.err
    answer = shell("serve", "status", "--url", served.url, "--token-file", "token")
    assert "endpoint walk: 0 answers" in answer.out, answer.err
    assert TOKEN not in served.command.out


def test_a_graph_is_served_watched_and_reported(shell: Steppe) -> None:
    write_router(shell.folder)
    assert "no endpoint has written anything" in shell("serve", "report").err
    served = serve(shell, "-f", "router", "--watch", "--access-log", "access.jsonl")
    played = shell(
        "play", "--url", served.url, "-E", "CartPole-v1", "--episodes", "6", "-q", "--max-timesteps-per-episode", "20"
    )
    assert (played.code, played.out, played.err) == (0, "", "")
    assert sum(served.rewarded().values()) == 6
    status = json.loads(shell("serve", "status", "--url", served.url, "--json").out)
    assert [branch["name"] for branch in status["endpoint"]["routers"][0]["branches"]] == ["bad1", "bad2", "good"]
    table = shell("serve", "status", "--url", served.url).out
    assert "router (epsilon_greedy)  good" in table

    several = shell("serve", "rollback", "--url", served.url)
    assert f"{served.url} serves bad1, bad2, good; choose one by --policy" in several.err
    report = json.loads(shell("serve", "report", "--json").out)
    assert (report["decisions"], report["rewarded"]) == (6, 6)
    assert shell("serve", "report", "router").out.startswith("6 decisions, 6 rewarded, mean return ")
    assert 'did you mean "router"?' in shell("serve", "report", "rooter").err
    served.command.send(signal.SIGTERM)
    assert served.command.answer().code == 0
    lines = [json.loads(line) for line in (shell.folder / "access.jsonl").read_text().splitlines()]
    assert {"infer", "feedback"} <= {line["operation"] for line in lines}


def test_a_database_can_be_named_by_the_environment(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    shell.environment["STEPPE_SERVE_DATABASE"] = str(shell.folder / "kept.sqlite")
    served = serve(shell, "walk")
    shell("play", "--url", served.url, "-E", "CartPole-v1", "--episodes", "1", "-q")
    served.command.send(signal.SIGTERM)
    served.command.answer()
    assert (shell.folder / "kept.sqlite").is_file()
    assert shell("serve", "report").err == "error: give the endpoint's name\n"
    assert shell("serve", "report", "walk").out.startswith("1 decision, 1 rewarded")


def test_others_need_a_token_and_are_told_that_nothing_is_encrypted(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    answer = shell("serve", "walk", "--host", "0.0.0.0", "--port", "0")
    assert answer.code == 2
    assert answer.err.startswith("error: whoever reaches 0.0.0.0 could ask this endpoint")
    served = serve(shell, "walk", "--host", "0.0.0.0", "--token", TOKEN)
    wait_until(lambda: "note: nothing is encrypted" in served.command.out, "the note")


def test_mistakes_are_reported_in_one_sentence(steppe: Callable, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPPE_SERVE_TOKEN", raising=False)
    save_policy(here / "walk")
    (here / "token").write_text(TOKEN)
    for words, sentence in (
        (("start",), "give one thing to serve: a policy's folder, -e EXPERIMENT or -f GRAPH"),
        (("walk", "-e", "first"), "give one thing to serve"),
        (("walk", "--token", "short"), "the token has only 5 characters; use at least 16"),
        (("walk", "--token", TOKEN, "--token-file", "token"), "two tokens are given; leave out"),
        (("walk", "--tls-cert", "cert.pem"), "TLS needs both the certificate and its key"),
        (("walk", "--token-file", "nowhere"), "cannot read the token in nowhere"),
        (("-f", "nowhere"), 'no graph "nowhere"'),
        (("list",), 'no policy, experiment or command "list" (commands: pin, reload, report, rollback, start, '),
        (("stop",), 'no policy, experiment or command "stop"'),
        (("reprot",), 'did you mean "report"?'),
        (("status", "--url", "banana"), 'there is no host "banana"'),
        (("walk", "--port", "0", "--database", "postgresql://127.0.0.1:1/x"), "cannot be used"),
        (("walk", "--database", "mysql://x"), 'a ledger cannot be kept in "mysql"'),
        (("status", "--url", "http://127.0.0.1:1"), "cannot reach the endpoint at http://127.0.0.1:1"),
        (("status", "--url", "nonsense://x"), "is not the address of an endpoint"),
        (("walk", "--prot", "1"), 'unknown option "--prot"'),
    ):
        answer = steppe("serve", *words)
        assert sentence in answer.err, answer
        assert answer.code in (1, 2)
        assert answer.err.count("\n") == 1
        assert "rewards are refused" not in answer.err


def test_ignored_parts_of_a_seldon_deployment_are_noted(steppe: Callable, here: Path) -> None:
    save_policy(here / "walk")
    spec = {"predictors": [{"graph": {"name": "walk", "parameters": [{"name": "speed", "value": "1"}]}}]}
    (here / "deployed.json").write_text(json.dumps({"kind": "SeldonDeployment", "spec": spec}))
    answer = steppe("serve", "-f", "deployed.json", "--host", "0.0.0.0")
    assert answer.out == 'note: the parameter "speed" of "walk" is not used\n'
    assert "whoever reaches 0.0.0.0" in answer.err


def test_a_port_that_is_taken_is_named(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    answer = shell("serve", "walk", "-n", "second", "--port", str(served.port))
    assert answer.code == 2
    assert f"cannot listen at 127.0.0.1:{served.port}: address already in use; choose another" in answer.err


def test_help_shows_what_serving_takes_and_the_other_commands(steppe: Callable) -> None:
    for words in (("serve", "--help"), ("serve", "-h")):
        text = steppe(*words).out
        assert "--watch" in text
        assert "rollback" in text
    assert "--confidence" in steppe("serve", "report", "--help").out


def test_serve_without_start_means_the_same(shell: Steppe) -> None:
    save_policy(shell.folder / "report")
    served = serve(shell, "./report")
    assert served.get("/v2/models/report")["name"] == "report"
    served.command.send(signal.SIGTERM)
    assert served.command.answer().code == 0
    os.rename(shell.folder / "report", shell.folder / "walk")  # noqa: PTH104
    assert serve(shell, "start", "walk").get("/v2/models/walk")["name"] == "walk"


def test_a_name_cannot_lead_out_of_the_serving_folder(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    before = sorted(shell.folder.parent.rglob("*"))
    answer = shell("serve", "walk", "--port", "0", "--name", "../../evil")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith('error: "../../evil" cannot be the name of an endpoint: a name is made of letters, ')
    assert answer.err.count("\n") == 1
    outputs = shell.folder.parent / "outputs"
    assert [path for path in sorted(shell.folder.parent.rglob("*")) if outputs not in (path, *path.parents)] == before

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import make_certificate
from endpoints import save_balancing_policy, save_policy, serve, write_router
from ports import free_port
from processes import Command, Steppe, wait_until

from policies import describe, tensors_for
from steppe.envs.registry import make_compiled
from steppe.policies.policy import Policy
from steppe.specs.environment import EnvironmentSpec
from steppe.tracking.metrics import read_metrics

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

SHORT = ("-E", "CartPole-v1", "--max-timesteps-per-episode", "20")


def wait_for_episodes(playing: Command, metrics: Path, count: int) -> None:
    def have_been_played() -> bool:
        assert not playing.has_ended, playing.answer()
        return metrics.exists() and len(metrics.read_text().splitlines()) >= count

    wait_until(have_been_played, f"{count} episodes have been played")


def test_every_protocol_plays_and_teaches_the_router(shell: Steppe) -> None:
    write_router(shell.folder)
    served = serve(shell, "-f", "router.json", "--grpc-port", "0")
    for number, (protocol, url, feedback) in enumerate(
        (
            ("v2", served.url, "episode"),
            ("v2-grpc", f"127.0.0.1:{served.grpc_port}", "step"),
            ("seldon", served.url, "episode"),
        ),
        start=1,
    ):
        words = ("--protocol", protocol, "--feedback", feedback, "--runners", "2", "--episodes", "4", "--json")
        answer = shell("play", "--url", url, *SHORT, *words)
        assert answer.code == 0, answer.err
        summary = json.loads(answer.out)
        assert (summary["episodes"], summary["sent_again"], summary["uncounted_rewards"]) == (4, 0, 0)
        assert {route["policy"] for route in summary["routes"]} <= {"bad1", "bad2", "good"}
        assert all(route["route"].startswith("router=") for route in summary["routes"])
        assert sum(served.rewarded().values()) == 4 * number
        folder = shell.folder / "steppe-plays" / f"CartPole-v1-{number}"
        assert len(read_metrics(folder)) == 4
        assert json.loads((folder / "play.json").read_text()) == summary
    mean = {each["name"]: each["mean_reward"] for each in served.get("/standing")["endpoint"]["policies"]}
    assert mean["good"] in (None, 20.0)


def test_play_prints_a_summary(shell: Steppe) -> None:
    save_balancing_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    answer = shell("play", "--url", served.url, *SHORT, "--episodes", "2", "--out", "mine")
    assert answer.out.startswith(f"playing CartPole-v1 through {served.url}\n"), answer.err
    assert "played 2 episodes (40 timesteps) with mean return 20.0 in " in answer.out
    assert "ROUTE  POLICY" in answer.out
    assert answer.out.endswith("metrics are in mine/\n")
    again = shell("play", "--url", served.url, *SHORT, "--out", "mine")
    assert again.err == "error: mine holds the metrics of something else already; give --out another folder\n"


def test_without_an_environment_play_uses_the_policys_own(shell: Steppe) -> None:
    save_balancing_policy(shell.folder / "walk")
    served = serve(shell, "walk", "--grpc-port", "0")
    for protocol in ("v2", "seldon"):
        words = ("--protocol", protocol, "--max-timesteps-per-episode", "20", "--episodes", "1", "--json")
        answer = shell("play", "--url", served.url, *words)
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["environment"] == "CartPole-v1"
    answer = shell("play", "--url", f"127.0.0.1:{served.grpc_port}", "--protocol", "v2-grpc")
    assert answer.code == 2
    assert "does not say in which environment it was trained; give one by --environment" in answer.err


def test_the_port_of_another_protocol_is_refused_at_once(shell: Steppe) -> None:
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk", "--grpc-port", "0")
    answer = shell("play", "--url", f"127.0.0.1:{served.grpc_port}", *SHORT)
    assert (answer.code, "does not speak HTTP; give the endpoint's HTTP port" in answer.err) == (2, True), answer
    answer = shell("play", "--url", served.url, "--protocol", "v2-grpc", *SHORT)
    assert (answer.code, "speaks HTTP and not gRPC; give the endpoint's gRPC port" in answer.err) == (2, True), answer


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("", "does not say in which environment it was trained; give one by --environment"),
        ("os:getcwd", 'was trained in "os:getcwd", which is not started just because an endpoint says so'),
        ("remote", 'was trained in "remote", which is not started just because an endpoint says so'),
    ],
)
def test_an_endpoint_does_not_choose_code_to_run(shell: Steppe, environment: str, sentence: str) -> None:
    save_policy(shell.folder / "walk", environment=environment)
    answer = shell("play", "--url", serve(shell, "walk").url, "--episodes", "1")
    assert answer.code == 2
    assert sentence in answer.err


def test_environments_that_only_run_compiled_can_be_played(shell: Steppe) -> None:
    spaces = make_compiled(EnvironmentSpec(id="GridWorld"))
    like = describe(spaces.observation_space, spaces.action_space)
    made = replace(like, environment="GridWorld")
    Policy(made, tensors_for(made)).save(shell.folder / "walk")
    answer = shell("play", "--url", serve(shell, "walk").url, "--stochastic", "--episodes", "3", "--runners", "2", "-q")
    assert (answer.code, answer.err) == (0, "")
    records = read_metrics(shell.folder / "steppe-plays" / "GridWorld-1")
    assert [record["episode"] for record in records] == [1, 2, 3]
    assert all(record["episode_length"] <= spaces.max_episode_steps for record in records)


@pytest.mark.faults
def test_a_server_that_is_killed_and_comes_back_loses_no_reward_and_counts_none_twice(shell: Steppe) -> None:
    save_balancing_policy(shell.folder / "walk")
    served = serve(shell, "walk", port=free_port())
    words = ("--runners", "3", "--episodes", "40", "--feedback", "episode", "--out", "mine", "--patience", "100")
    playing = shell.launch("play", "--url", served.url, "-E", "CartPole-v1", *words)
    metrics = shell.folder / "mine" / "metrics.jsonl"
    for count in (2, 8):
        wait_for_episodes(playing, metrics, count)
        assert served.command.kill() == -9
        served = serve(shell, "walk", port=served.port)
    answer = playing.answer()
    assert answer.code == 0, answer.err
    assert "is away" in answer.out
    assert "is back after" in answer.out
    summary = json.loads((shell.folder / "mine" / "play.json").read_text())
    assert (summary["episodes"], summary["uncounted_rewards"]) == (40, 0)
    (policy,) = served.get("/standing")["endpoint"]["policies"]
    assert policy["feedback"] == 40
    assert policy["mean_reward"] == pytest.approx(summary["mean_return"])


@pytest.mark.faults
def test_ctrl_c_ends_it_with_a_summary(shell: Steppe) -> None:
    save_balancing_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    playing = shell.launch(
        "play", "--url", served.url, *SHORT, "--runners", "2", "--episodes", "100000", "--out", "mine"
    )
    metrics = shell.folder / "mine" / "metrics.jsonl"
    wait_for_episodes(playing, metrics, 3)
    playing.send(signal.SIGINT)
    answer = playing.answer()
    assert answer.code == 130
    assert answer.err == ""
    assert "ended by Ctrl-C after " in answer.out
    played = len(read_metrics(shell.folder / "mine"))
    assert served.rewarded() == {"walk": played}
    assert json.loads((shell.folder / "mine" / "play.json").read_text())["stopped"]


def test_an_unknown_host_is_refused_at_once(steppe: Callable, here: Path) -> None:
    for url in ("banana", "http://" + "a" * 70):
        answer = steppe("play", "--url", url, *SHORT)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("error: there is no host ")


def test_the_endpoint_that_serve_starts_is_the_default(steppe: Callable, here: Path) -> None:
    answer = steppe("play", *SHORT, "--protocol", "nonsense")
    assert 'unknown protocol "nonsense"' in answer.err
    assert "http://127.0.0.1:8000 without it" in " ".join(steppe("play", "--help").out.split())


def test_an_endpoint_that_is_not_there_is_waited_for_and_then_named(shell: Steppe) -> None:
    answer = shell("play", "--url", "http://127.0.0.1:1", *SHORT, "--patience", "0.2")
    assert answer.code == 1
    assert "is away (connection refused); trying again for up to 0.2 s" in answer.out
    assert answer.err.startswith("error: the endpoint at http://127.0.0.1:1 was away for 0.2 s (connection refused)")


@pytest.mark.faults
def test_ctrl_c_ends_the_waiting_too(shell: Steppe) -> None:
    playing = shell.launch("play", "--url", "http://127.0.0.1:1", *SHORT)
    wait_until(lambda: "is away" in playing.out, "it waits")
    playing.send(signal.SIGINT)
    answer = playing.answer()
    assert (answer.code, answer.err) == (130, "error: ended by Ctrl-C before anything was played\n")
    assert list((shell.folder / "steppe-plays").iterdir()) == []


def test_a_token_and_tls_are_passed_on(shell: Steppe) -> None:
    certificate = make_certificate(shell.folder)
    save_policy(shell.folder / "walk")
    (shell.folder / "token").write_text("0123456789abcdef")
    tls = ("--tls-cert", certificate[0], "--tls-key", certificate[1])
    served = serve(shell, "walk", "--token-file", "token", *tls, "--grpc-port", "0")
    assert served.url.startswith("https://")
    trust = ("--token-file", "token", "--tls-ca", certificate[0], "--episodes", "1", "-q")
    for words in (("--url", served.url), ("--url", f"grpcs://localhost:{served.grpc_port}", "--protocol", "v2-grpc")):
        answer = shell("play", *words, *SHORT, *trust)
        assert (answer.code, answer.out, answer.err) == (0, "", "")
    without = shell("play", "--url", served.url, *SHORT, "--tls-ca", certificate[0])
    assert without.code == 2
    assert "refused access" in without.err


SHOWN = """
from gymnasium.envs.classic_control import CartPoleEnv

class Shown(CartPoleEnv):
    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        with open("made.txt", "a") as file:
            print(render_mode, file=file)

    def close(self):
        with open("made.txt", "a") as file:
            print("a window" if self.screen is not None else "no window", file=file)
        super().close()
"""


def test_the_first_runner_plays_in_a_window(shell: Steppe) -> None:
    pytest.importorskip("pygame")
    shell.environment["SDL_VIDEODRIVER"] = "dummy"
    (shell.folder / "shown.py").write_text(SHOWN)
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    words = ("-E", "shown:Shown", "--max-timesteps-per-episode", "20", "--episodes", "4", "--runners", "2", "-q")
    answer = shell("play", "--url", served.url, *words, "--render")
    assert answer.code == 0, answer.err
    # One environment for its spaces, and one for each runner.
    assert sorted((shell.folder / "made.txt").read_text().splitlines()) == [
        *["None", "None", "a window", "human", "no window", "no window"]
    ]


def test_without_a_screen_nothing_can_be_shown(shell: Steppe) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        shell.environment.pop(variable, None)
    answer = shell("play", "--url", "http://127.0.0.1:1", *SHORT, "--render", "--patience", "0")
    assert answer.code == 2
    assert answer.err.startswith("error: --render shows a window, and this machine has no screen"), answer.err
    shell.environment["DISPLAY"] = ":0"
    answer = shell("play", "--url", "http://127.0.0.1:1", "-E", "GridWorld", "--render", "--patience", "0")
    assert 'environment "GridWorld" only runs compiled and has no window; leave out --render' in answer.err


def test_mistakes_are_reported_in_one_sentence(steppe: Callable, here: Path) -> None:
    (here / "file").write_text("")
    url = ("--url", "http://127.0.0.1:1", "--patience", "0")
    for words, sentence in (
        ((*url, "-E", "CartPole-v1", "--protocol", "v3"), 'unknown protocol "v3"; it is v2, v2-grpc or seldon'),
        ((*url, "-E", "CartPole-v1", "--feedback", "steps"), 'unknown --feedback "steps"; did you mean "step"?'),
        ((*url, "-E", "CartPole-v1", "--out", "file"), "file is a file; give --out a folder"),
        ((*url, "-E", "CartPole-v1", "--token", "a", "--token-file", "b"), "two tokens are given"),
        ((*url, "--feedback", "steps"), 'unknown --feedback "steps"'),
        (("--url", "x:y", "-E", "CartPole-v1"), "is not the address of an endpoint"),
    ):
        answer = steppe("play", *words)
        assert answer.code == 2, answer
        assert sentence in answer.err, answer
    assert not (here / "steppe-plays").exists()

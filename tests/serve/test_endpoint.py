"""Questions, answers and feedback with real policies and a real ledger."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from served_graphs import question, run, save_policy, serving

import steppe
from policies import MEMORY
from steppe.errors import UserError
from steppe.policies.policy import load_policy
from steppe.serve import Feedback, NotFound, Question, Unavailable

TWO = {"kind": "abtest", "name": "split", "branches": ["p0", "p1"]}
ROUTER = {"kind": "router", "name": "best", "branches": ["p0", "p1", "p2"]}


@pytest.mark.parametrize("word", ["sequence_start", "sequence_end"])
def test_sequence_flags_without_an_episode_are_refused(tmp_path, word):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            with pytest.raises(UserError, match="need a sequence_id; send it too"):
                endpoint.answer(question(**{word: True}))

    run(check())


def branches(endpoint, router=0):
    return {branch.name: branch for branch in endpoint.standing().routers[router].branches}


def test_a_single_policy_answers_with_its_action(tmp_path):
    async def check():
        save_policy(tmp_path / "p0")
        async with serving(tmp_path, "p0") as endpoint:
            observations = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
            answer = endpoint.answer(Question(observations, outputs=True))
            policy = load_policy(tmp_path / "p0")
            assert answer.actions.tolist() == policy.act(observations).tolist()
            np.testing.assert_array_equal(answer.outputs, policy.outputs(observations))
            assert (answer.route, answer.policy, answer.propensity) == ((), "p0", 1.0)
            assert answer.version == endpoint.standing().policies[0].version
            assert endpoint.answer(question()).outputs is None

    run(check())


def test_a_question_may_ask_for_a_drawn_action(tmp_path):
    async def check():
        save_policy(tmp_path / "p0", kind="random", layers=None)
        save_policy(tmp_path / "p1")
        async with serving(tmp_path, "p1") as endpoint:
            greedy = {int(endpoint.answer(question()).actions[0]) for _ in range(50)}
            drawn = {int(endpoint.answer(question(deterministic=False)).actions[0]) for _ in range(200)}
            assert (len(greedy), len(drawn)) == (1, 3)
        graph = {"policy": "p1", "deterministic": False}
        async with serving(tmp_path, graph, folder=tmp_path / "other") as endpoint:
            assert len({int(endpoint.answer(question()).actions[0]) for _ in range(200)}) == 3

    run(check())


def test_a_route_is_chosen_once_per_episode(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            for episode in range(30):
                answers = [endpoint.answer(question(sequence_id=str(episode))) for _ in range(20)]
                assert len({(answer.route, answer.policy, answer.propensity) for answer in answers}) == 1
                assert len({answer.id for answer in answers}) == 20
            policies = Counter(endpoint.answer(question()).policy for _ in range(200))
            assert set(policies) == {"p0", "p1"}
            assert answers[0].propensity == 0.5

    run(check())


def test_an_answer_names_the_branch_that_gave_it(tmp_path):
    async def check():
        async with serving(tmp_path, ROUTER) as endpoint:
            for _ in range(50):
                answer = endpoint.answer(question())
                assert answer.route == (("best", int(answer.actions[0])),)

    run(check())


def test_sequence_start_begins_another_episode_and_sequence_end_ends_it(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            ways = {endpoint.answer(question(sequence_id="e", sequence_start=True)).policy for _ in range(40)}
            assert ways == {"p0", "p1"}
            assert endpoint.standing().open_episodes == 1
            endpoint.answer(question(sequence_id="e", sequence_end=True))
            assert endpoint.standing().open_episodes == 0
            await endpoint.flush()
            assert sum(branch.decisions for branch in branches(endpoint).values()) == 40
            assert sum(branch.requests for branch in branches(endpoint).values()) == 41

    run(check())


def test_a_router_moves_the_traffic_to_the_best_policy(tmp_path):
    async def check(bandit):
        graph = ROUTER | {"bandit": bandit}
        async with serving(tmp_path, graph, folder=tmp_path / bandit) as endpoint:
            rng = np.random.default_rng(1)
            for episode in range(150):
                for _ in range(3):
                    answer = endpoint.answer(question(sequence_id=str(episode)))
                value = float(rng.normal([10.0, 12.0, 200.0][int(answer.actions[0])], 5.0))
                await endpoint.feedback(Feedback(value, sequence_id=str(episode), sequence_end=True))
            found = branches(endpoint)
            assert found["p2"].is_best
            # UCB1 explores the others now and then, with certainty.
            assert found["p2"].probability > 0.9 or bandit == "ucb1"
            assert found["p2"].share > 0.8
            assert found["p2"].mean_reward == pytest.approx(200.0, abs=5.0)
            assert sum(branch.feedback for branch in found.values()) == 150

    for bandit in ("epsilon_greedy", "ucb1", "thompson"):
        run(check(bandit))


def test_routes_match_their_propensities_while_a_router_learns(tmp_path):
    async def check():
        async with serving(tmp_path, ROUTER | {"bandit": {"type": "epsilon_greedy", "epsilon": 0.5}}) as endpoint:
            expected, taken = np.zeros(3), np.zeros(3)
            for step in range(3000):
                probabilities = [branch.probability for branch in branches(endpoint).values()]
                answer = endpoint.answer(question())
                index = answer.route[0][1]
                assert answer.propensity == probabilities[index]
                expected += probabilities
                taken[index] += 1
                if step % 50 == 0:
                    await endpoint.feedback(Feedback(float(index), id=answer.id))
            assert np.abs(taken - expected).max() < 4 * math.sqrt(3000 * 0.25)

    run(check())


def test_step_rewards_add_up_to_the_return(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            answers = [endpoint.answer(question(sequence_id="e")) for _ in range(4)]
            for index, answer in enumerate(answers):
                receipt = await endpoint.feedback(Feedback(0.9, id=answer.id, sequence_id="e"))
                assert receipt.applied
                assert receipt.episode_return == pytest.approx(0.9 * (index + 1))
            assert branches(endpoint)[answers[0].policy].feedback == 0
            last = await endpoint.feedback(Feedback(0.4, sequence_id="e", sequence_end=True))
            assert last.episode_return == pytest.approx(4.0)
            assert last.route == (("split", answers[0].policy),)
            assert branches(endpoint)[answers[0].policy].mean_reward == pytest.approx(4.0)
            assert endpoint.standing().open_episodes == 0

    run(check())


def test_a_reward_may_come_after_the_last_question(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            endpoint.answer(question(sequence_id="e", sequence_start=True))
            answer = endpoint.answer(question(sequence_id="e", sequence_end=True))
            await endpoint.flush()
            assert branches(endpoint)[answer.policy].mean_reward is None
            await endpoint.feedback(Feedback(7.5, sequence_id="e"))
            assert branches(endpoint)[answer.policy].mean_reward == 7.5

    run(check())


def test_repeated_feedback_counts_once(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            answer = endpoint.answer(question(id="mine"))
            again = [Feedback(1.0, id="mine"), Feedback(1.0, id="mine")]
            receipts = await asyncio.gather(*(endpoint.feedback(each) for each in again * 10))
            assert sum(receipt.applied for receipt in receipts) == 1
            endpoint.answer(question(sequence_id="e"))
            receipts = [await endpoint.feedback(Feedback(5.0, sequence_id="e", sequence_end=True)) for _ in range(3)]
            assert [receipt.applied for receipt in receipts] == [True, False, False]
            assert [receipt.episode_return for receipt in receipts] == [5.0] * 3
            assert answer.id == "mine"

    run(check())


def test_a_restart_forgets_nothing(tmp_path):
    async def before():
        async with serving(tmp_path, ROUTER) as endpoint:
            for episode in range(10):
                answer = endpoint.answer(question(sequence_id=str(episode)))
                await endpoint.feedback(
                    Feedback(float(answer.actions[0]), sequence_id=str(episode), sequence_end=episode < 7)
                )
            open_ones = {str(e): endpoint.answer(question(sequence_id=str(e))) for e in range(7, 10)}
            return open_ones, branches(endpoint)

    async def after():
        async with serving(tmp_path, ROUTER, seed=77) as endpoint:
            start = branches(endpoint)
            answers = {str(episode): endpoint.answer(question(sequence_id=str(episode))) for episode in range(7, 10)}
            repeated = await endpoint.feedback(Feedback(99.0, sequence_id="3", sequence_end=True))
            later = await endpoint.feedback(Feedback(1.0, id=answers["8"].id))
            return answers, start, repeated, later

    open_ones, stood = run(before())
    answers, start, repeated, later = run(after())
    for sequence, answer in open_ones.items():
        assert (answers[sequence].route, answers[sequence].propensity) == (answer.route, answer.propensity)
        assert answers[sequence].version == answer.version
        assert answers[sequence].id != answer.id
    for name, branch in start.items():
        assert (branch.feedback, branch.mean_reward) == (stood[name].feedback, stood[name].mean_reward)
        assert branch.probability == pytest.approx(stood[name].probability)
    assert not repeated.applied
    assert later.applied


def test_graphs_can_be_nested(tmp_path):
    graph = {
        "kind": "router",
        "name": "top",
        "bandit": {"type": "epsilon_greedy", "epsilon": 0.5},
        "branches": ["p0", {"kind": "abtest", "name": "inner", "weights": [1, 3], "branches": ["p1", "p2"]}],
    }

    async def check():
        async with serving(tmp_path, graph) as endpoint:
            answers = [endpoint.answer(question()) for _ in range(100)]
            ways = {answer.policy: (answer.route, answer.propensity) for answer in answers}
            assert ways == {
                "p0": ((("top", 0),), 0.5),
                "p1": ((("top", 1), ("inner", 0)), 0.125),
                "p2": ((("top", 1), ("inner", 1)), 0.375),
            }
            inner = next(answer for answer in answers if answer.policy == "p2")
            await endpoint.feedback(Feedback(3.0, id=inner.id))
            assert branches(endpoint, 0)["inner"].mean_reward == 3.0
            assert branches(endpoint, 1)["p2"].mean_reward == 3.0
            assert endpoint.standing().policies[2].mean_reward == 3.0

    run(check())


def test_a_policy_can_be_asked_without_its_router(tmp_path):
    async def check():
        async with serving(tmp_path, ROUTER) as endpoint:
            answers = [endpoint.answer(question(model="p1")) for _ in range(10)]
            assert {(answer.policy, answer.route, answer.propensity) for answer in answers} == {("p1", (), 1.0)}
            await endpoint.feedback(Feedback(1000.0, id=answers[0].id))
            # Questions that name their policy teach the router nothing.
            assert branches(endpoint)["p1"].feedback == 0
            assert endpoint.standing().policies[1].mean_reward == 1000.0
            assert endpoint.answer(question(model="best")).route
            with pytest.raises(NotFound, match='no model "p7" here; there are best, p0, p1, p2'):
                endpoint.answer(question(model="p7"))

    run(check())


def test_an_episode_keeps_its_model_and_version(tmp_path):
    async def check():
        async with serving(tmp_path, ROUTER) as endpoint:
            endpoint.answer(question(model="p1", sequence_id="e"))
            with pytest.raises(UserError, match='episode "e" began with "p1"'):
                endpoint.answer(question(sequence_id="e"))
            assert endpoint.answer(question(model="p1", sequence_id="e")).policy == "p1"

    run(check())


def test_a_shadow_is_asked_and_compared_but_never_answers(tmp_path):
    graph = {"kind": "shadow", "name": "watched", "live": "p1", "shadows": ["p2", {"policy": "p1", "name": "same"}]}

    async def check():
        async with serving(tmp_path, graph) as endpoint:
            for _ in range(20):
                answer = endpoint.answer(question())
                assert (answer.actions.tolist(), answer.policy, answer.route) == ([1], "p1", ())
            await endpoint.flush()
            other, same = endpoint.standing().shadows
            assert (other.requests, other.mean_difference, other.failed) == (20, 1.0, 0)
            assert (same.policy, same.mean_difference) == ("same", 0.0)
            assert endpoint.standing().policies[1].requests == 0

    run(check())


def test_a_shadow_that_fails_does_not_harm_the_answer(tmp_path, monkeypatch):
    graph = {"kind": "shadow", "live": "p1", "shadows": ["p2"]}

    async def check():
        async with serving(tmp_path, graph) as endpoint:
            policy = endpoint.graph.nodes["p2"].versions.current.policy
            monkeypatch.setattr(policy, "advance", lambda *arguments: 1 / 0)
            assert endpoint.answer(question()).actions.tolist() == [1]
            await endpoint.flush()
            (shadow,) = endpoint.standing().shadows
            assert (shadow.requests, shadow.failed, shadow.mean_difference) == (1, 1, None)

    run(check())


def test_a_recurrent_policy_keeps_a_state_for_each_episode(tmp_path):
    async def check():
        save_policy(tmp_path / "p0", layers=MEMORY)
        policy = load_policy(tmp_path / "p0")
        rng = np.random.default_rng(0)
        steps = rng.standard_normal((12, 3, 4)).astype(np.float32)
        async with serving(tmp_path, "p0") as endpoint:
            asked = [
                [endpoint.answer(Question(steps[t, e : e + 1], sequence_id=str(e), outputs=True)) for e in range(3)]
                for t in range(12)
            ]
            state = policy.initial_state((3,))
            for t in range(12):
                expected, state = policy.outputs_after(steps[t], state)
                found = np.concatenate([answer.outputs for answer in asked[t]])
                np.testing.assert_allclose(found, expected, atol=1e-6)
            again = endpoint.answer(Question(steps[0, :1], sequence_id="0", sequence_start=True, outputs=True))
            np.testing.assert_allclose(again.outputs, asked[0][0].outputs, atol=1e-6)
            alone = endpoint.answer(Question(steps[0, :1], outputs=True))
            np.testing.assert_allclose(alone.outputs, asked[0][0].outputs, atol=1e-6)
            with pytest.raises(UserError, match="1 observations in each question, not 2"):
                endpoint.answer(question(rows=2, sequence_id="1"))

    run(check())


def test_a_repeated_question_gets_the_same_answer_and_no_second_decision(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            for n in range(20):
                first = endpoint.answer(question(id=f"{n}-0", sequence_id=str(n), sequence_start=True))
                again = endpoint.answer(question(id=f"{n}-0", sequence_id=str(n), sequence_start=True))
                (together,) = endpoint.answers([question(id=f"{n}-0", sequence_id=str(n), sequence_start=True)])
                assert again is first
                assert together is first
                endpoint.answer(question(id=f"{n}-1", sequence_id=str(n)))
                endpoint.answer(question(id=f"{n}-1", sequence_id=str(n)))
                await endpoint.feedback(Feedback(1.0, sequence_id=str(n), sequence_end=True))
            await endpoint.flush()
            found = branches(endpoint).values()
            assert [sum(getattr(each, what) for each in found) for what in ("decisions", "feedback", "requests")] == [
                *(20, 20, 40)
            ]

    run(check())


def test_a_repeated_question_does_not_advance_a_recurrent_policy(tmp_path):
    async def check():
        save_policy(tmp_path / "p0", layers=MEMORY)
        steps = np.random.default_rng(0).standard_normal((6, 1, 4)).astype(np.float32)
        async with serving(tmp_path, "p0") as endpoint:
            once, twice = (
                [
                    [endpoint.answer(Question(each, f"{t}", name, t == 0, outputs=True)) for _ in range(times)][-1]
                    for t, each in enumerate(steps)
                ]
                for name, times in (("once", 1), ("twice", 2))
            )
            for one, other in zip(once, twice, strict=True):
                np.testing.assert_array_equal(one.outputs, other.outputs)
            await endpoint.flush()
            assert endpoint.standing().policies[0].requests == 12

    run(check())


def test_only_an_identical_question_counts_as_repeated(tmp_path):
    async def check():
        save_policy(tmp_path / "p0", layers=MEMORY)
        async with serving(tmp_path, "p0") as endpoint:
            asked = [Question(np.full((1, 4), t, np.float32), "same", "a", outputs=True) for t in (1.0, 2.0, 1.0)]
            outputs = [endpoint.answer(each).outputs.tolist() for each in asked]
            assert outputs[0] != outputs[1]
            assert outputs[0] != outputs[2]
            start = Question(asked[-1].observations, "same", "a", sequence_start=True, outputs=True)
            assert endpoint.answer(start).outputs.tolist() == outputs[0]
            with pytest.raises(UserError, match="began with"):
                endpoint.answer(question(id="same", sequence_id="a", version="7-other"))

    run(check())


def test_open_episodes_are_bounded_and_the_oldest_expire(tmp_path):
    async def check():
        async with serving(tmp_path, TWO, limits={"episodes": 10_000}) as endpoint:
            first = endpoint.answer(question(sequence_id="0"))
            await endpoint.feedback(Feedback(3.0, sequence_id="0"))
            for number in range(1, 12_500):
                endpoint.answer(question(sequence_id=str(number)))
                if number % 1000 == 0:
                    await endpoint.flush()
            standing = endpoint.standing()
            assert (standing.open_episodes, standing.expired_episodes) == (10_000, 2_500)
            await endpoint.flush()
            # Expired episodes taught their return so far, and late rewards still find them.
            assert branches(endpoint)[first.policy].mean_reward == 3.0
            receipt = await endpoint.feedback(Feedback(1.0, id=first.id))
            assert receipt.episode_return == 4.0
            assert branches(endpoint)[first.policy].mean_reward == 4.0

    run(check())


def test_an_episode_in_use_does_not_expire_before_silent_ones(tmp_path):
    async def check():
        async with serving(tmp_path, TWO, limits={"episodes": 10}) as endpoint:
            first = endpoint.answer(question(sequence_id="kept"))
            for number in range(100):
                endpoint.answer(question(sequence_id=str(number)))
                assert endpoint.answer(question(sequence_id="kept")).id.startswith(first.id)

    run(check())


def test_silent_episodes_expire(tmp_path):
    async def check():
        async with serving(tmp_path, TWO, limits={"idle_seconds": 0.05}) as endpoint:
            endpoint.answer(question(sequence_id="e"))
            for _ in range(6000):
                await asyncio.sleep(0.01)
                if not endpoint.standing().open_episodes:
                    break
            assert endpoint.standing().expired_episodes == 1

    run(check())


def test_questions_answered_together_get_the_same_answers_as_singly(tmp_path):
    async def check():
        for index in range(3):
            save_policy(tmp_path / f"p{index}", seed=index)
        rng = np.random.default_rng(4)
        observations = rng.standard_normal((40, 2, 4)).astype(np.float32)
        async with serving(tmp_path, ROUTER) as endpoint:
            questions = [Question(o, sequence_id=None if i % 3 else f"e{i % 4}") for i, o in enumerate(observations)]
            questions[7] = question(model="nowhere")
            for index in (8, 9, 11):
                questions[index] = Question(observations[index], outputs=True)
            answers = endpoint.answers(questions)
            routes = {}
            for index, (asked, answer) in enumerate(zip(questions, answers, strict=True)):
                if index == 7:
                    assert isinstance(answer, NotFound)
                    continue
                policy = endpoint.graph.nodes[answer.policy].versions.current.policy
                assert answer.actions.tolist() == policy.act(asked.observations).tolist()
                if asked.sequence_id is not None:
                    assert routes.setdefault(asked.sequence_id, answer.route) == answer.route
                assert (answer.outputs is not None) == asked.outputs
                if asked.outputs:
                    expected = policy.outputs(asked.observations)
                    np.testing.assert_allclose(answer.outputs, expected, rtol=1e-5, atol=1e-6)

    run(check())


@pytest.mark.parametrize(
    ("feedback", "sentence"),
    [
        (Feedback(1.0), "needs the id of a request"),
        (Feedback(math.nan, id="x"), "must be a finite number"),
        (Feedback(math.inf, id="x"), "must be a finite number"),
        (Feedback(10**400, id="x"), "must be a finite number"),
        (Feedback("1", id="x"), "must be a number, not 1"),
        (Feedback(True, id="x"), "must be a number"),
        (Feedback(1.0, id="unknown"), 'no request "unknown"'),
        (Feedback(1.0, sequence_id="unknown"), 'no episode "unknown"'),
        (Feedback(1.0, id="a\x00b"), "id must have"),
        (Feedback(1.0, sequence_id="x" * 201), "sequence_id must have 1 to 200"),
        (Feedback(1.0, id="x", feedback_id="\ud800"), "feedback_id must have"),
    ],
)
def test_invalid_feedback_is_explained(tmp_path, feedback, sentence):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            with pytest.raises(UserError, match=sentence):
                await endpoint.feedback(feedback)

    run(check())


def test_a_closed_endpoint_says_so(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            answer = endpoint.answer(question())
        assert not endpoint.is_ready
        with pytest.raises(Unavailable, match="not running"):
            await endpoint.feedback(Feedback(1.0, id=answer.id))

    run(check())


def test_serving_does_not_import_jax(tmp_path):
    save_policy(tmp_path / "p0")
    program = """
import asyncio, sys
import numpy as np
from steppe.serve import Feedback, Question, load_endpoint
async def main():
    endpoint = load_endpoint("p0")
    await endpoint.start()
    answer = endpoint.answer(Question(np.zeros((1, 4), np.float32)))
    await endpoint.feedback(Feedback(1.0, id=answer.id))
    await endpoint.close()
asyncio.run(main())
print(sorted({"jax", "scipy", "gymnasium", "psycopg"} & sys.modules.keys()))
"""
    path = str(Path(steppe.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "serving" / "p0" / "ledger.sqlite").is_file()


@pytest.mark.parametrize("reward", [1e100, -1e100, 1.1e9, float("inf"), float("-inf"), float("nan"), 10**400])
def test_an_excessive_reward_is_refused(tmp_path, reward):
    async def play():
        async with serving(tmp_path, {"kind": "model", "policy": "p0"}) as endpoint:
            answer = endpoint.answer(question())
            with pytest.raises(UserError, match="a reward must be a finite number of at most 1e"):
                await endpoint.feedback(Feedback(reward, id=answer.id))
            assert (await endpoint.feedback(Feedback(1e9, id=answer.id))).applied

    run(play())

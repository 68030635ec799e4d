"""Bandits against simulations and against their proven bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from steppe.serve.routing.bandits import Arm, probabilities
from steppe.specs.serving import EpsilonGreedy, Thompson, Ucb1

EVERY = [EpsilonGreedy(), Ucb1(), Thompson()]


def play(settings, draw, arms, steps, seed):
    """(pulls of each arm [arms], the arms) after that many pulls with rewards draw(rng, arm)."""
    rng = np.random.default_rng(seed)
    known = [Arm() for _ in range(arms)]
    pulls = np.zeros(arms, int)
    for _ in range(steps):
        chances = probabilities(settings, known)
        arm = min(int(np.searchsorted(np.cumsum(chances), rng.random())), arms - 1)
        known[arm].chosen += 1
        known[arm].learn(draw(rng, arm))
        pulls[arm] += 1
    return pulls, known


def regret(settings, means, noise, steps, seed):
    pulls, _ = play(settings, lambda rng, arm: noise(rng, means[arm]), len(means), steps, seed)
    return float(np.sum(pulls * (max(means) - np.asarray(means))))


def coin(rng, mean):
    return float(rng.random() < mean)


def normal(rng, mean):
    return rng.normal(mean, 10.0)


def arms_of(*samples):
    arms = []
    for sample in samples:
        arm = Arm(chosen=len(sample))
        for value in sample:
            arm.learn(value)
        arms.append(arm)
    return arms


@pytest.mark.parametrize("settings", EVERY, ids=lambda settings: settings.type)
@pytest.mark.parametrize("number", [2, 3, 7])
def test_probabilities_always_sum_to_one(settings, number):
    rng = np.random.default_rng(number)
    for _ in range(100):
        scale = 10.0 ** rng.integers(-6, 7)
        arms = arms_of(*(rng.normal(scale, scale, rng.integers(0, 6)) for _ in range(number)))
        for arm in arms:
            arm.chosen += int(rng.integers(0, 200))
        chances = probabilities(settings, arms)
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        assert (chances >= 0).all()
        assert chances.min() >= min(getattr(settings, "floor", settings.model_dump().get("epsilon", 0) / number), 0.01)


def test_a_mean_of_many_is_exact_and_can_be_corrected():
    values = np.random.default_rng(0).normal(1e6, 1.0, 1000)
    (arm,) = arms_of(values)
    assert arm.mean == pytest.approx(values.mean(), abs=1e-6)
    assert arm.squares == pytest.approx(values.var() * 1000, rel=1e-6)
    arm.correct(values[3], 5.0)
    values[3] = 5.0
    assert arm.mean == pytest.approx(values.mean(), abs=1e-6)
    assert arm.squares == pytest.approx(values.var() * 1000, rel=1e-6)
    assert (arm.count, arm.lowest) == (1000, 5.0)


def test_fractional_rewards_count():
    chances = probabilities(EpsilonGreedy(epsilon=0.2), arms_of([0.4, 0.5], [0.9, 0.8]))
    assert chances.tolist() == pytest.approx([0.1, 0.9])


def test_epsilon_greedy_shares_between_equal_arms():
    chances = probabilities(EpsilonGreedy(epsilon=0.3), arms_of([1.0], [2.0], [2.0]))
    assert chances.tolist() == pytest.approx([0.1, 0.45, 0.45])


@pytest.mark.parametrize("settings", EVERY, ids=lambda settings: settings.type)
def test_an_arm_without_rewards_is_tried_first_but_not_for_ever(settings):
    arms = [*arms_of([100.0, 101.0, 100.0]), Arm()]
    assert probabilities(settings, arms)[1] >= 0.9
    arms[1].chosen = settings.patience
    assert probabilities(settings, arms)[1] <= 0.5


def test_epsilon_greedy_has_the_regret_of_its_epsilon():
    means, steps = [0.2, 0.5, 0.8], 2000
    found = np.mean([regret(EpsilonGreedy(epsilon=0.1), means, coin, steps, seed) for seed in range(3)])
    random_part = 0.1 * steps * np.mean(0.8 - np.asarray(means))
    assert 0.7 * random_part < found < 1.6 * random_part


def test_ucb1_stays_below_the_bound_of_its_theorem():
    means, steps = [0.3, 0.5, 0.9], 2000
    gaps = 0.9 - np.asarray(means[:2])
    bound = 8 * np.sum(math.log(steps) / gaps) + (1 + math.pi**2 / 3) * gaps.sum()  # Auer et al. 2002, theorem 1
    settings = Ucb1(reward_range=1.0, floor=0.0)
    for seed in range(3):
        assert regret(settings, means, coin, steps, seed) < bound


def test_thompson_has_much_less_regret_than_chance_and_it_grows_sublinearly():
    means = [0.0, 5.0, 10.0]
    short = np.mean([regret(Thompson(floor=0.0), means, normal, 300, seed) for seed in range(6)])
    long = np.mean([regret(Thompson(floor=0.0), means, normal, 2400, seed) for seed in range(6)])
    assert short < 0.4 * 300 * 5.0
    assert long < 3.0 * short
    assert long < 0.1 * 2400 * 5.0


def test_ucb1_finds_the_best_arm_for_rewards_of_any_size():
    for scale in (1e-3, 1e3):
        pulls, _ = play(Ucb1(), lambda rng, arm, s=scale: s * rng.normal([-1, 0, 1][arm], 0.5), 3, 2000, 5)
        assert pulls[2] > 0.85 * 2000


def test_thompson_matches_the_frequency_of_independent_draws():
    arms = arms_of(*(np.random.default_rng(i).normal(i * 0.3, 1.0, 5 + i) for i in range(4)))
    chances = probabilities(Thompson(floor=0.0), arms)
    values = [np.random.default_rng(i).normal(i * 0.3, 1.0, 5 + i) for i in range(4)]
    spread = np.concatenate(values).var()
    deviations = [math.sqrt((v.var() * len(v) + spread) / len(v) / len(v)) for v in values]
    draws = np.random.default_rng(9).normal([v.mean() for v in values], deviations, (400_000, 4))
    expected = np.bincount(draws.argmax(1), minlength=4) / len(draws)
    assert chances == pytest.approx(expected, abs=0.004)


def test_thompson_accepts_rewards_that_never_vary():
    assert probabilities(Thompson(), arms_of([1.0] * 5, [2.0] * 5))[1] > 0.95
    assert probabilities(Thompson(), arms_of([1.0] * 5, [1.0] * 5)).tolist() == pytest.approx([0.5, 0.5])
    assert probabilities(Ucb1(), arms_of([1.0] * 5, [1.0] * 5)).tolist() == pytest.approx([0.5, 0.5])

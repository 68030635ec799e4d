"""How many episodes are kept, and which expire first."""

from __future__ import annotations

import numpy as np

from steppe.serve.messages.exchange import PolicyAnswer, Question
from steppe.serve.routing.episodes import OpenEpisodes, RoutedEpisode


def episode(sequence, key=None):
    return RoutedEpisode(key or f"key {sequence}", sequence, None, None, 1.0)


def test_the_episode_silent_for_longest_expires_first():
    episodes = OpenEpisodes(3, 60.0, 1 << 20)
    a, b, c, d = (episode(name) for name in "abcd")
    for each in (a, b, c):
        assert episodes.touch(each) == []
    episodes.touch(a)
    assert episodes.touch(d) == [b]
    assert (len(episodes), episodes.expired, episodes.get("b")) == (3, 1, None)


def test_an_end_does_not_close_a_later_episode_of_the_same_name():
    episodes = OpenEpisodes(3, 60.0, 1 << 20)
    episodes.touch(episode("a", "old"))
    newer = episode("a", "new")
    episodes.touch(newer)
    episodes.close("a", "old")
    assert episodes.get("a") is newer
    episodes.close("a", "new")
    assert len(episodes) == 0


def test_only_silent_episodes_expire():
    episodes = OpenEpisodes(3, 60.0, 1 << 20)
    old, new = episode("old"), episode("new")
    episodes.touch(old)
    episodes.touch(new)
    old.touched -= 61.0
    assert episodes.expire() == [old]
    assert episodes.expire() == []


def answered(episodes, name, actions):
    """Notes a question of an episode and its answer; returns the episodes that expired to make room."""
    one = episodes.get(name) or episode(name)
    question = Question(np.zeros((len(actions), 4), np.float32), id="x", sequence_id=name)
    episodes.remember(one, question, PolicyAnswer("x", actions, (), "p", "v", 1.0))
    return [each.sequence for each in episodes.touch(one)]


def test_episodes_expire_if_they_keep_too_many_bytes():
    episodes = OpenEpisodes(10, 60.0, 1000)
    assert answered(episodes, "a", np.zeros(400, np.uint8)) == []
    assert answered(episodes, "b", np.zeros(400, np.uint8)) == []
    # The last answer replaces the one before.
    assert answered(episodes, "a", np.zeros(500, np.uint8)) == []
    assert episodes.bytes == 900
    remembering = episode("c")
    remembering.states["p"] = {"lstm": np.zeros((10, 5), np.float32)}
    assert [each.sequence for each in episodes.touch(remembering)] == ["b"]
    assert episodes.bytes == 700
    assert answered(episodes, "large", np.zeros(5000, np.uint8)) == ["a", "c"]
    assert len(episodes) == 1
    assert answered(episodes, "d", np.zeros(1, np.uint8)) == ["large"]
    episodes.close("d", "key d")
    assert episodes.bytes == 0


def test_an_answer_is_kept_without_the_batch_it_was_computed_in():
    episodes = OpenEpisodes(10, 60.0, 1 << 20)
    batch = np.arange(100_000)
    answered(episodes, "a", batch[:2])
    kept = episodes.get("a").last[1].actions
    assert kept.base is None
    assert kept.tolist() == [0, 1]

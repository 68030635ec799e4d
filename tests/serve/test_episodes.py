"""How many episodes are kept, and which go first."""

from __future__ import annotations

from steppe.serve.episodes import Episode, OpenEpisodes


def episode(sequence, key=None):
    return Episode(key or f"key {sequence}", sequence, None, None, 1.0)


def test_the_one_silent_for_longest_goes_first():
    episodes = OpenEpisodes(3, 60.0)
    a, b, c, d = (episode(name) for name in "abcd")
    for each in (a, b, c):
        assert episodes.touch(each) == []
    episodes.touch(a)
    assert episodes.touch(d) == [b]
    assert (len(episodes), episodes.expired, episodes.get("b")) == (3, 1, None)


def test_an_ending_does_not_close_a_later_episode_of_the_same_name():
    episodes = OpenEpisodes(3, 60.0)
    episodes.touch(episode("a", "old"))
    newer = episode("a", "new")
    episodes.touch(newer)
    assert episodes.close("a", "old") is None
    assert episodes.get("a") is newer
    assert episodes.close("a", "new") is newer
    assert len(episodes) == 0


def test_only_the_silent_expire():
    episodes = OpenEpisodes(3, 60.0)
    old, new = episode("old"), episode("new")
    episodes.touch(old)
    episodes.touch(new)
    old.touched -= 61.0
    assert episodes.expire() == [old]
    assert episodes.expire() == []

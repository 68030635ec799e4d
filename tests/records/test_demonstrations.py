"""Files of demonstrations: they load unchanged, and invalid content is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from demonstrated import made_up, random_policy

from steppe.errors import StorageError, UserError
from steppe.files.bundles import FOLDER_VARIABLE, pack
from steppe.files.tensors import checksum, parse, serialize
from steppe.policies.preprocessing import Preprocessing
from steppe.records.demonstrations import ARRAYS, Demonstrations, find, load, load_named
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

SPACES = {
    "vectors": (Box((3,)), Discrete(2)),
    "bounded vectors, actions from 4 on": (Box((2,), (-1.0, -2.0), (1.0, float("inf"))), Discrete(3, start=4)),
    "pictures": (Box((5, 4, 1), (0.0,), (255.0,), "uint8"), Discrete(2)),
    "numbers": (Discrete(4, start=2), MultiDiscrete((2, 3))),
    "continuous actions": (Box(()), Box((2, 1), (-1.0,), (1.0,))),
}


@pytest.fixture
def file(tmp_path):
    return made_up(Box((3,)), Discrete(2)).save(tmp_path / "good.safetensors")


def test_bundled_demonstrations_are_read_if_the_file_is_missing(file, tmp_path, monkeypatch):
    assert len(load_named(str(file))) == len(load(file))
    packed = pack(file, str(file), 1000, 10**6)
    folder = tmp_path / "arrived"
    folder.mkdir()
    for name, data in packed.files.items():
        (folder / name).write_bytes(data)
    known = load(file)
    file.unlink()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    np.testing.assert_array_equal(load_named(str(file)).arrays["observations"], known.arrays["observations"])
    with pytest.raises(UserError, match="there are no demonstrations"):
        load_named("other.safetensors")


def rewritten(file: Path, change) -> None:
    """The file with its metadata and arrays changed, and a checksum that matches again."""
    metadata, arrays = parse(file.read_bytes())
    change(metadata, arrays)
    metadata["sha256"] = checksum(metadata.get("description", ""), arrays)
    file.write_bytes(serialize(arrays, metadata))


@pytest.mark.parametrize("spaces", SPACES.values(), ids=SPACES.keys())
def test_saved_demonstrations_load_unchanged(tmp_path, spaces):
    written = made_up(*spaces)
    read = load(written.save(tmp_path / "deep" / "er" / "good.safetensors"))
    assert (read.environment, read.observation, read.action) == ("Test-v0", *spaces)
    assert read.mean_return == written.mean_return
    assert set(read.arrays) == set(ARRAYS)
    for name, array in written.arrays.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array)


def test_any_safetensors_reader_can_read_the_file(file):
    from safetensors import safe_open

    with safe_open(file, "np") as content:
        about = json.loads(content.metadata()["description"])
        assert content.metadata()["format"] == "steppe-demonstrations"
        assert set(content.keys()) == set(ARRAYS)
        assert content.get_tensor("observations").shape == (16, 3)
    assert (about["environment"], about["timesteps"]) == ("Test-v0", 16)
    assert about["action"] == {"type": "discrete", "n": 2, "start": 0}


def test_the_same_demonstrations_are_the_same_bytes(tmp_path):
    one, other = (made_up(Box((3,)), Discrete(2)).save(tmp_path / name).read_bytes() for name in ("one", "other"))
    assert one == other


def test_arrays_in_any_memory_order_are_written_in_row_order(tmp_path):
    written = made_up(Box((3,)), Discrete(2))
    turned = np.asfortranarray(written.arrays["observations"])
    assert not turned.flags.c_contiguous
    path = replace(written, arrays=written.arrays | {"observations": turned}).save(tmp_path / "turned")
    np.testing.assert_array_equal(load(path).arrays["observations"], turned)


def test_a_changed_byte_is_detected(file):
    content = file.read_bytes()
    for place in [*range(0, len(content), 37), len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged|holds no demonstrations|version|understood"):
            load(file)


def test_a_truncated_file_is_detected(file):
    content = file.read_bytes()
    for end in (0, 5, 100, len(content) - 1):
        file.write_bytes(content[:end])
        with pytest.raises(UserError, match=r"good\.safetensors holds no demonstrations, or they are damaged"):
            load(file)


def test_another_kind_of_file_is_refused(tmp_path):
    policy = random_policy(Box((3,)), Discrete(2)).save(tmp_path) / "policy.safetensors"
    with pytest.raises(
        UserError, match=r"policy\.safetensors holds no demonstrations; record some with: steppe record"
    ):
        load(policy)
    with pytest.raises(StorageError, match=r"cannot read .*: is a directory"):
        load(tmp_path)


def test_a_later_version_asks_to_upgrade_steppe(file):
    rewritten(file, lambda metadata, arrays: metadata.update(version="2"))
    with pytest.raises(UserError, match="has version 2 but this Steppe reads version 1; upgrade Steppe"):
        load(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"environment": "a", "mean_return": 1, "observation": {}}'])
def test_an_incomplete_description_is_refused(file, text):
    rewritten(file, lambda metadata, arrays: metadata.update(description=text))
    with pytest.raises(UserError, match="holds a description that cannot be understood"):
        load(file)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: arrays.pop("rewards"), "demonstrations have the arrays observations, actions, "),
        (lambda arrays: arrays.update(more=np.zeros(3)), "not actions, more, next_observations"),
        (lambda arrays: arrays.update({name: array[:0] for name, array in arrays.items()}), "at least one timestep"),
        (lambda arrays: arrays.update(actions=arrays["actions"][1:]), r'"actions" .* must have shape \(16,\)'),
        (
            lambda arrays: arrays.update(observations=np.zeros((16, 4), np.float32)),
            r'"observations" .* must have shape \(16, 3\), not \(16, 4\)',
        ),
        (lambda arrays: arrays.update(terminated=np.zeros(16)), '"terminated" .* must be true or false, not float64'),
        (lambda arrays: arrays["rewards"].__setitem__(3, np.nan), '"rewards" .* must be finite numbers'),
        (lambda arrays: arrays["observations"].__setitem__((3, 1), np.inf), '"observations" .* must be finite numbers'),
        (lambda arrays: arrays["actions"].__setitem__(3, 2), r'"actions" .* must be whole numbers in 0 \.\. 1'),
        (lambda arrays: arrays["actions"].__setitem__(3, -1), r'"actions" .* must be whole numbers in 0 \.\. 1'),
        (lambda arrays: arrays.update(actions=np.zeros(16, np.float32)), '"actions" .* must be whole numbers'),
        (lambda arrays: arrays["truncated"].__setitem__(-1, False), "last timestep .* ends no episode"),
    ],
)
def test_invalid_timesteps_are_named_with_their_file(file, change, sentence):
    rewritten(file, lambda metadata, arrays: change(arrays))
    with pytest.raises(UserError, match=f"good.safetensors cannot be used: .*{sentence}"):
        load(file)


def test_choices_of_observations_and_bytes_are_checked_too():
    for space, wrong in [
        (Discrete(4, start=2), np.full(16, 1, np.int32)),
        (MultiDiscrete((2, 3)), np.full((16, 2), 2, np.int32)),
        (Box((2, 2, 1), (0.0,), (255.0,), "uint8"), np.zeros((16, 2, 2, 1), np.float32)),
    ]:
        right = made_up(space, Discrete(2))
        for name in ("observations", "next_observations"):
            with pytest.raises(UserError, match=f'^"{name}" of the demonstrations must be'):
                replace(right, arrays=right.arrays | {name: wrong})


def test_demonstrations_fit_spaces_of_the_same_form_whatever_their_bounds():
    shown = made_up(Box((3,)), Discrete(2))
    assert shown.fitting(Box((3,), (-4.0,), (4.0,)), Discrete(2), "Other-v0") is shown


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (Box((4,)), Discrete(2), r"observations of numbers of shape \(3,\), but Other-v0 has numbers of shape \(4,\)"),
        (Box((3,), dtype="uint8"), Discrete(2), r"but Other-v0 has bytes of shape \(3,\)"),
        (Discrete(5), Discrete(2), "but Other-v0 has 5 choices"),
        (Box((3,)), Discrete(3), "actions of 2 choices, but Other-v0 has 3 choices"),
        (Box((3,)), Discrete(2, start=1), "but Other-v0 has 2 choices from 1 on"),
        (Box((3,)), MultiDiscrete((2, 3)), "but Other-v0 has several choices of 2, 3"),
    ],
)
def test_demonstrations_of_other_spaces_are_refused(observation, action, words):
    with pytest.raises(UserError, match=f"recorded in Test-v0 with .*{words}.*; record others there"):
        made_up(Box((3,)), Discrete(2)).fitting(observation, action, "Other-v0")


def test_a_cut_episode_counts_as_truncated():
    shown = made_up(Box((3,)), Discrete(2), episodes=(5, 1, 7, 3))
    assert shown.first(16) is shown
    assert shown.first(99) is shown
    cut = shown.first(9)
    assert len(cut) == 9
    np.testing.assert_array_equal(cut.arrays["truncated"], [False] * 5 + [True] + [False] * 2 + [True])
    # Nothing changes if the last timestep terminates its episode.
    np.testing.assert_array_equal(shown.first(5).arrays["truncated"], [False] * 5)
    assert shown.first(5).arrays["terminated"][-1]
    assert not shown.arrays["truncated"][8]


def test_preprocessing_starts_anew_at_each_episode():
    shown = made_up(Box((2,)), Discrete(2), episodes=(4, 1, 3))
    preprocessing = Preprocessing(
        PreprocessingSpec([{"type": "divide", "scale": 2}, {"type": "sequence", "length": 3}]), Box((2,))
    )
    observations, following = shown.seen_through(preprocessing)
    t = 0
    for length in (4, 1, 3):
        frames = [shown.arrays["observations"][t] / 2] * 3
        for _ in range(length):
            np.testing.assert_allclose(observations[t], np.concatenate(frames[-3:]))
            frames.append(shown.arrays["next_observations"][t] / 2)
            np.testing.assert_allclose(following[t], np.concatenate(frames[-3:]))
            t += 1


def test_a_file_is_found_in_the_current_folder_and_then_in_the_project(tmp_path, monkeypatch):
    (tmp_path / "steppe.json").write_text("{}")
    below = tmp_path / "notes" / "today"
    below.mkdir(parents=True)
    shown = made_up(Box((3,)), Discrete(2))
    in_project = shown.save(tmp_path / "good.safetensors")
    monkeypatch.chdir(below)
    assert find("good.safetensors") == in_project
    assert find(str(in_project)) == in_project
    assert find("../../good.safetensors").samefile(in_project)
    here = shown.save(below / "good.safetensors")
    assert find("good.safetensors") == here
    with pytest.raises(UserError, match=f'no demonstrations "none" in {below} or {tmp_path}; record some with'):
        find("none")
    with pytest.raises(UserError, match='no demonstrations "/none"; record some'):
        find("/none")


def test_demonstrations_know_where_episodes_end():
    shown = made_up(Box((3,)), Discrete(2), episodes=(2, 1, 3))
    assert isinstance(shown, Demonstrations)
    np.testing.assert_array_equal(shown.ended, [False, True, True, False, False, True])

from __future__ import annotations

import json
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from steppe.errors import SpecError, StorageError, UserError
from steppe.networks import Network, apply_head
from steppe.records import Policy, PolicyDescription, load_policy
from steppe.records import policy as policy_module
from steppe.records.policy import flatten, tensor_shapes
from steppe.specs.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part

DENSE = [{"type": "dense", "size": 16, "activation": "tanh"}, {"type": "dense", "size": 8, "activation": "relu"}]


def describe(observation=None, action=None, layers=DENSE, kind="categorical", normalizer=None, **head):
    spaces = (observation or Box((4,)), action or Discrete(3))
    network = None if layers is None else NetworkSpec(layers)
    return PolicyDescription("test", "Test-v0", 7, *spaces, network, {"kind": kind, **head}, normalizer)


def tensors_for(description, seed=0):
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(description)
    return {name: rng.random(shape, np.float32) - 0.3 * ("var" not in name) for name, shape in shapes.items()}


def make_policy(*args, **settings):
    description = describe(*args, **settings)
    return Policy(description, tensors_for(description))


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def by_jax(policy, x):
    """Features of the JAX network on what the normalizer makes of x."""
    tensors = policy.tensors
    if policy.description.normalizer:
        x = (x - tensors["normalizer/mean"]) / np.sqrt(tensors["normalizer/var"] + 1e-8)
        x = np.clip(x, -policy.description.normalizer["clip"], policy.description.normalizer["clip"])
    params: dict = {}
    for name, tensor in tensors.items():
        if name.startswith("torso/"):
            _, layer, parameter = name.split("/")
            params.setdefault(layer, {})[parameter] = jnp.asarray(tensor)
    return Network(policy.description.network, policy.description.observation).apply(params, x)


def head_of(policy, part=""):
    return {name: policy.tensors[f"head/{part}{name}"] for name in ("kernel", "bias")}


@pytest.mark.parametrize("normalizer", [None, {"clip": 0.5}])
def test_outputs_equal_the_jax_network(normalizer):
    policy = make_policy(normalizer=normalizer)
    x = 3 * floats(8, 4)
    np.testing.assert_allclose(policy.outputs(x), apply_head(head_of(policy), by_jax(policy, x)), atol=1e-5)


def test_a_dueling_head_adds_the_value_to_centred_advantages():
    policy = make_policy(kind="q_values", dueling=True)
    x = floats(5, 4)
    features = by_jax(policy, x)
    value, advantage = (apply_head(head_of(policy, part), features) for part in ("value/", "advantage/"))
    expected = value + advantage - advantage.mean(-1, keepdims=True)
    np.testing.assert_allclose(policy.outputs(x), expected, atol=1e-5)
    assert policy.act(x).tolist() == np.argmax(expected, -1).tolist()


def test_earlier_outputs_are_not_overwritten_by_later_ones():
    policy = make_policy()
    first = policy.outputs(floats(3, 4))
    kept = first.copy()
    policy.outputs(floats(3, 4) + 5)
    np.testing.assert_array_equal(first, kept)


def test_one_observation_or_a_batch_of_any_number_type_is_understood():
    policy = make_policy(action=Discrete(3, start=10))
    x = floats(6, 4)
    batch = policy.act(x)
    assert batch.shape == (6,)
    assert set(batch.tolist()) <= {10, 11, 12}
    one = policy.act(x[2].astype(np.float64).tolist())
    assert type(one) is int
    assert one == batch[2]
    assert policy.act(jnp.asarray(x[2])) == one
    assert make_policy().act([1, 0, 0, 1]) == make_policy().act([1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("space", "observation"),
    [(Discrete(4, start=1), 3), (MultiDiscrete((2, 3)), [1, 2]), (Box((3, 3, 1), (0.0,), (255.0,), "uint8"), None)],
)
def test_choices_and_images_are_observed(space, observation):
    policy = make_policy(observation=space)
    one = np.full(space.shape, 7.0) if observation is None else observation
    assert policy.act(one) == policy.act(np.asarray([one, one]))[0]


def test_gaussian_actions_are_the_clipped_mean_or_spread_around_it():
    space = Box((2, 1), (-0.5, -9.0), (0.5, 9.0))
    policy = make_policy(action=space, kind="gaussian")
    x = floats(4)
    mean = policy.outputs(x[None])[0]
    np.testing.assert_allclose(policy.act(x).ravel(), np.clip(mean, [-0.5, -9], [0.5, 9]), atol=1e-6)
    rng = np.random.default_rng(0)
    drawn = np.array([policy.act(x, deterministic=False, rng=rng) for _ in range(2000)])
    assert drawn.shape == (2000, 2, 1)
    assert drawn[:, 0].max() <= 0.5
    assert float(drawn[:, 1].std()) == pytest.approx(float(np.exp(policy.tensors["head/log_std"][1])), rel=0.1)


def test_stochastic_actions_follow_the_logits_and_repeat_with_the_generator():
    policy = make_policy()
    x = floats(4)
    logits = policy.outputs(x[None])[0]
    drawn = policy.act(np.tile(x, (20_000, 1)), deterministic=False, rng=np.random.default_rng(0))
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, expected, atol=0.015)
    again = policy.act(np.tile(x, (20_000, 1)), deterministic=False, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, again)


def test_a_random_policy_draws_also_when_asked_for_its_best_and_repeats_with_the_generator():
    policy = make_policy(layers=None, kind="random", action=Discrete(50))
    drawn = [policy.act(floats(200, 4), deterministic, np.random.default_rng(3)) for deterministic in (True, False)]
    assert len(set(drawn[0].tolist())) > 25
    np.testing.assert_array_equal(*drawn)


MEMORY = [{"type": "dense", "size": 6}, {"type": "lstm", "size": 5}, {"type": "gru", "size": 3}]


def test_a_recurrent_policy_remembers_until_it_is_reset():
    policy = make_policy(layers=MEMORY, action=Box((2,)), kind="gaussian")
    assert policy.is_recurrent
    episode = floats(4, 4)
    first = [policy.act(x) for x in episode]
    policy.reset()
    again = [policy.act(x) for x in episode]
    np.testing.assert_array_equal(first, again)
    policy.reset()
    alone = policy.act(episode[-1])
    assert not np.allclose(alone, first[-1])
    assert not make_policy().is_recurrent
    assert make_policy().initial_state((3,)) == {}


def test_a_recurrent_policys_pure_form_equals_the_one_that_remembers():
    policy = make_policy(layers=MEMORY, action=Box((2,)), kind="gaussian")
    episodes, state = floats(5, 3, 4), policy.initial_state((3,))
    assert {name: each.shape for name, each in state.items()} == {
        "1_lstm/hidden": (3, 5),
        "1_lstm/cell": (3, 5),
        "2_gru/hidden": (3, 3),
    }
    for t, x in enumerate(episodes):
        untouched = {name: each.copy() for name, each in state.items()}
        outputs, after = policy.outputs_after(x, state)
        actions, later = policy.advance(x, state)
        np.testing.assert_array_equal(actions, policy.act(x))
        np.testing.assert_array_equal(actions, outputs)
        for name in state:
            np.testing.assert_array_equal(state[name], untouched[name])
            np.testing.assert_array_equal(after[name], later[name])
        ended = np.array([t == 1, t == 2, False])
        state = {name: np.where(ended[:, None], 0.0, each) for name, each in later.items()}
        policy.reset(ended)


def test_a_recurrent_policy_refuses_what_it_cannot_remember():
    policy = make_policy(layers=MEMORY)
    policy.act(floats(2, 4))
    with pytest.raises(UserError, match=r"remembers 2 episodes but got 1 observations.*reset\(\)"):
        policy.act(floats(4))
    with pytest.raises(UserError, match=r'state "1_lstm/hidden" of shape \(2, 5\)'):
        policy.advance(floats(2, 4), policy.initial_state((3,)))
    with pytest.raises(UserError, match='state "1_lstm/hidden"'):
        policy.advance(floats(2, 4), {})
    with pytest.raises(UserError, match="outputs_after"):
        policy.outputs(floats(2, 4))


def test_what_a_policy_does_not_know_of_a_state_goes_through_it():
    outputs, state = make_policy().outputs_after(floats(2, 4), {"noise": 3})
    np.testing.assert_array_equal(outputs, make_policy().outputs(floats(2, 4)))
    assert state == {"noise": 3}


def test_random_and_constant_policies_need_no_network():
    box = Box((2,), (-1.0,), (1.0,))
    random = make_policy(layers=None, kind="random", action=box)
    first = random.act(floats(4))
    assert np.all(np.abs(first) <= 1)
    assert random.outputs(floats(3, 4)).shape == (3, 0)
    constant = Policy(describe(layers=None, kind="constant", action=Discrete(9, start=3)), {"constant/action": 5})
    assert constant.act(floats(4)) == 5
    assert constant.act(floats(2, 4)).tolist() == [5, 5]
    still = Policy(describe(layers=None, kind="constant", action=box), {"constant/action": [0.5, -0.5]})
    np.testing.assert_array_equal(still.act(floats(4)), np.float32([0.5, -0.5]))


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(5), ("(4,)", "(batch, 4)", "(5,)")),
        (np.zeros((2, 3, 4)), ("(4,)", "(2, 3, 4)")),
        ([[1, 2], [3]], ("(4,)",)),
        ("left", ("(4,)",)),
        (None, ("(4,)",)),
    ],
)
def test_a_wrong_observation_is_refused_with_the_shape_it_should_have(observation, words):
    with pytest.raises(UserError) as caught:
        make_policy().act(observation)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("value", [0.5, 256, -1, float("nan")])
def test_a_picture_that_bytes_cannot_hold_is_refused_instead_of_becoming_another(value):
    policy = make_policy(observation=Box((3, 3, 1), (0.0,), (255.0,), "uint8"))
    with pytest.raises(UserError, match="not all whole numbers that uint8 can hold"):
        policy.act(np.full((3, 3, 1), value))


@pytest.mark.parametrize("observation", [4, -1, [0, 7]])
def test_a_choice_that_does_not_exist_is_refused(observation):
    with pytest.raises(UserError, match=r"0 \.\. 3"):
        make_policy(observation=Discrete(4)).act(observation)


def test_replace_takes_copies_and_refuses_other_shapes():
    description = describe()
    new = {name: jnp.asarray(tensor) for name, tensor in tensors_for(description, seed=5).items()}
    policy = make_policy()
    policy.replace(new)
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), Policy(description, new).outputs(floats(2, 4)))
    mutable = tensors_for(description)
    policy.replace(mutable)
    before = policy.outputs(floats(2, 4))
    mutable["head/bias"] += 1
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), before)
    with pytest.raises(UserError, match=r'"head/bias".*\(3,\).*\(4,\)'):
        policy.replace({**new, "head/bias": np.zeros(4)})
    with pytest.raises(UserError, match='lacks the tensor "head/bias"'):
        policy.replace({name: tensor for name, tensor in new.items() if name != "head/bias"})
    with pytest.raises(UserError, match='"head/extra"'):
        policy.replace({**new, "head/extra": np.zeros(4)})
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), before)


def test_a_thread_that_acts_sees_one_generation_of_tensors_at_a_time():
    policy = make_policy()
    x = floats(64, 4)
    generations = [tensors_for(policy.description, seed) for seed in range(2)]
    valid = {Policy(policy.description, tensors).outputs(x).tobytes() for tensors in generations}
    mixed = []
    stop = threading.Event()

    def act():
        while not stop.is_set():
            if (given := policy.outputs(x).tobytes()) not in valid:
                mixed.append(given)

    thread = threading.Thread(target=act)
    thread.start()
    for index in range(400):
        policy.replace(generations[index % 2])
    stop.set()
    thread.join()
    assert not mixed


def test_a_head_that_learns_needs_a_network():
    with pytest.raises(SpecError, match="needs a network"):
        make_policy(layers=None)


@pytest.mark.parametrize(
    "description",
    [
        describe(normalizer={"clip": 10.0}),
        describe(kind="q_values", dueling=True, epsilon=0.1),
        describe(Discrete(4), MultiDiscrete((2, 3)), [{"type": "embedding", "indices": 4, "size": 3}]),
        describe(Box((2,), (0.0, float("-inf")), (1.0, float("inf"))), Box((2,)), kind="gaussian"),
        describe(layers=MEMORY),
        describe(
            Box((5,), parts=(Part("a", 0, Box((2, 1), (0.0,), (255.0,), "uint8")), Part("b/0", 2, Discrete(3)))),
            layers=[{"type": "input", "names": ["a", "b/0"]}, {"type": "nonlinearity", "beta": "learn"}],
        ),
        describe(Box((6, 6, 1)), layers=[{"type": "conv2d", "size": 2, "window": [1, 2]}]),
        describe(layers=None, kind="random", action=Box((2,))),
        describe(layers=None, kind="constant", action=Discrete(4)),
    ],
)
def test_a_saved_policy_loads_as_it_was(tmp_path, description):
    policy = Policy(description, tensors_for(description))
    folder = policy.save(tmp_path / "run" / "policy")
    for path in (folder, folder / "policy.json", folder / "policy.safetensors", tmp_path / "run", str(folder)):
        loaded = load_policy(path)
        assert loaded.description == description
        assert loaded.tensors.keys() == policy.tensors.keys()
        for name, tensor in policy.tensors.items():
            np.testing.assert_array_equal(loaded.tensors[name], tensor)
    manifest = json.loads((folder / "policy.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["timestep"]) == ("steppe-policy", 1, 7)
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]


def test_the_same_policy_is_always_the_same_bytes(tmp_path):
    policy = make_policy(normalizer={"clip": 10.0})
    folders = [policy.save(tmp_path / str(i)) for i in range(20)]
    for name in ("policy.safetensors", "policy.json"):
        assert len({(folder / name).read_bytes() for folder in folders}) == 1
    data = (folders[0] / "policy.safetensors").read_bytes()
    assert int.from_bytes(data[:8], "little") % 8 == 0
    by_another_reader = load_file(folders[0] / "policy.safetensors")
    assert by_another_reader.keys() == policy.tensors.keys()
    for name, tensor in by_another_reader.items():
        np.testing.assert_array_equal(tensor, policy.tensors[name])


def test_saving_again_keeps_what_else_is_in_the_folder(tmp_path):
    make_policy().save(tmp_path)
    make_policy().save(tmp_path / "best")
    (tmp_path / "policy.onnx").write_text("model")
    newer = make_policy(kind="q_values")
    newer.save(tmp_path)
    assert load_policy(tmp_path).description == newer.description
    assert load_policy(tmp_path / "best").kind == "categorical"
    assert (tmp_path / "policy.onnx").read_text() == "model"


def test_a_save_interrupted_between_its_files_leaves_a_whole_policy(tmp_path):
    make_policy().save(tmp_path)
    old = (tmp_path / "policy.json").read_text()
    newer = make_policy(kind="q_values")
    newer.save(tmp_path)
    (tmp_path / "policy.json").write_text(old)
    assert load_policy(tmp_path).description == newer.description


def test_a_reader_beside_a_writer_always_gets_a_whole_policy(tmp_path):
    policies = [make_policy(kind="categorical"), make_policy(kind="q_values", dueling=True)]
    policies[0].save(tmp_path)
    stop = threading.Event()

    def write():
        index = 0
        while not stop.is_set():
            index += 1
            policies[index % 2].save(tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        kinds = {load_policy(tmp_path).kind for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert kinds <= {"categorical", "q_values"}


def test_every_flipped_bit_is_noticed(tmp_path):
    make_policy(normalizer={"clip": 10.0}).save(tmp_path)
    file = tmp_path / "policy.safetensors"
    whole = file.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(whole), 150):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(position) % 8
        file.write_bytes(damaged)
        with pytest.raises(UserError) as caught:
            load_policy(tmp_path)
        assert "policy.safetensors" in str(caught.value)
    file.write_bytes(whole[:-10])
    with pytest.raises(UserError, match="damaged"):
        load_policy(tmp_path)


def test_an_edited_or_newer_or_missing_policy_is_refused_with_a_reason(tmp_path):
    folder = make_policy().save(tmp_path / "policy")
    manifest = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**manifest, "environment": "Other-v0"}))
    with pytest.raises(UserError, match=r"policy\.json does not describe"):
        load_policy(folder)
    (folder / "policy.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(UserError, match=r"version 2.*upgrade"):
        load_policy(folder)
    (folder / "policy.json").write_text("{")
    with pytest.raises(UserError, match=r"policy\.json"):
        load_policy(folder)
    (folder / "policy.json").unlink()
    assert load_policy(folder).kind == "categorical"
    with pytest.raises(UserError, match="there is no policy in"):
        load_policy(tmp_path / "nowhere")


def forge(folder, text, tensors):
    """A file whose checksum is right, whatever it holds."""
    checksum = policy_module._checksum(text, tensors)
    metadata = {"format": "steppe-policy", "version": "1", "description": text, "sha256": checksum}
    (folder / "policy.safetensors").write_bytes(save(tensors, metadata))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "not JSON", "cannot be understood"),
        (lambda text: "[1]", "cannot be understood"),
        (lambda text: "[" * 100_000, "cannot be understood"),
        (lambda text: text.replace('"network"', '"net"'), "cannot be understood"),
        (lambda text: text.replace('"box"', '"sphere"'), 'unknown space "sphere"'),
        (lambda text: text.replace('"size": 16', '"size": 1000000000'), "must have shape"),
        (lambda text: text.replace('"categorical"', '"random"'), "that its description does not know"),
    ],
)
def test_a_forged_description_is_refused_in_one_sentence_that_names_the_file(tmp_path, change, words):
    description = describe()
    text = json.dumps(description.to_json())
    assert change(text) != text
    forge(tmp_path, change(text), tensors_for(description))
    with pytest.raises(UserError, match=words) as caught:
        load_policy(tmp_path)
    assert str(tmp_path / "policy.safetensors") in str(caught.value)


def test_tensors_of_unknown_types_and_a_strange_manifest_are_refused(tmp_path):
    make_policy().save(tmp_path)
    (tmp_path / "policy.json").write_text("[1]")
    with pytest.raises(UserError, match=r"policy\.json does not describe a policy"):
        load_policy(tmp_path)
    header = b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    header += b" " * (-len(header) % 8)
    (tmp_path / "policy.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(UserError, match=r"policy\.safetensors is damaged"):
        load_policy(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        make_policy().save(tmp_path / "file" / "policy")


def test_nested_parameters_are_flattened_to_tensor_names():
    tree = {"torso": {"0_dense": {"kernel": 1, "bias": 2}}, "head": {"kernel": 3}}
    assert flatten(tree) == {"torso/0_dense/kernel": 1, "torso/0_dense/bias": 2, "head/kernel": 3}
    network = Network(NetworkSpec(DENSE), Box((4,)))
    names = flatten({"torso": network.init(np.random.default_rng(0))}).keys()
    assert names == {name for name in tensor_shapes(describe()) if name.startswith("torso/")}


def test_loading_and_acting_do_not_import_jax(tmp_path):
    make_policy().save(tmp_path)
    program = (
        "import sys, steppe.records\n"
        f"policy = steppe.records.load_policy({str(tmp_path)!r})\n"
        "policy.act([0, 0, 0, 0]); policy.act([0, 0, 0, 0], deterministic=False)\n"
        "heavy = {'jax', 'flax', 'gymnasium', 'tensorboardX', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

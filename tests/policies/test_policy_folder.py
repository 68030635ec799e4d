"""A policy on disk: it loads unchanged, and damaged, forged or edited files are named."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from coded_policies import LAYER, save_coded, write_module
from safetensors.numpy import load_file, save

from policies import MEMORY, describe, make_policy, tensors_for
from steppe.errors import ModuleNotAllowed, StorageError, UserError
from steppe.files.tensors import checksum
from steppe.policies.policy import Policy, load_policy
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part


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
def test_a_saved_policy_loads_unchanged(tmp_path, description):
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


def test_saving_again_keeps_other_files_of_the_folder(tmp_path):
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


def test_every_flipped_bit_is_detected(tmp_path):
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
    """A file with any content and a correct checksum."""
    metadata = {"format": "steppe-policy", "version": "1", "description": text, "sha256": checksum(text, tensors)}
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


def test_loading_and_acting_do_not_import_jax(tmp_path):
    make_policy().save(tmp_path)
    program = (
        "import sys, steppe.policies.policy\n"
        f"policy = steppe.policies.policy.load_policy({str(tmp_path)!r})\n"
        "policy.act([0, 0, 0, 0]); policy.act([0, 0, 0, 0], deterministic=False)\n"
        "heavy = {'jax', 'flax', 'gymnasium', 'tensorboardX', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_loading_imports_only_modules_that_are_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    save_coded(tmp_path / "policy", "sent_layer:Layer")
    marker = write_module(tmp_path, "sent_layer")
    for allowed in ((), "os", ["sent", "layer"]):
        with pytest.raises(ModuleNotAllowed, match=r'^the policy in policy has the layer "sent_layer:Layer", which'):
            load_policy("policy", allow_modules=allowed)
    assert not marker.exists()
    assert sys.path == path
    monkeypatch.syspath_prepend(tmp_path)
    assert load_policy("policy", allow_modules=("sent_layer",)).act(np.zeros(4)) == 1
    assert marker.exists()


def test_a_module_that_exits_or_raises_is_an_error_of_one_sentence(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, end in (("ends_program", "raise SystemExit(2)"), ("raises_error", "1 / 0")):
        write_module(tmp_path, name, LAYER + end + "\n")
        save_coded(tmp_path / name, f"{name}:Layer")
        with pytest.raises(UserError, match=rf'"{name}:Layer"|division by zero'):
            load_policy(tmp_path / name, allow_modules=name)

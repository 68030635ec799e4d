"""Files of this machine that an experiment names are sent to Pods, or refused before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demonstrated import made_up

from steppe.errors import UserError
from steppe.experiments.on_cluster import named_files
from steppe.spec_files import load_experiment
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.spaces import Box, Discrete


@pytest.fixture
def named(tmp_path: Path):
    """An experiment with these fields, read in a folder of its own."""

    def load(**fields: Any) -> ExperimentSpec:
        given = {"name": "x", "environment": "CartPole-v1", "platform": "kubernetes"} | fields
        return load_experiment(None, given, [], tmp_path, options=False)

    return load


def mounted(path: Path | str) -> dict[str, Any]:
    return {
        "volumes": [{"name": "mine", "hostPath": {"path": "/data"}}],
        "volume_mounts": [{"name": "mine", "mountPath": str(path)}],
    }


def test_demonstrations_go_along_by_the_name_that_the_experiment_has(named, tmp_path):
    made_up(Box((4,)), Discrete(2)).save(tmp_path / "good.safetensors")
    spec = named(agent={"type": "dqfd", "demonstrations": "good.safetensors"})
    (packed,) = named_files.large_files(spec)
    assert packed.name == spec.agent.settings["demonstrations"] == str(tmp_path / "good.safetensors")
    assert packed.size == (tmp_path / "good.safetensors").stat().st_size


def test_demonstrations_that_pods_have_mounted_stay(named, tmp_path):
    # Not read, and no error if missing: it may be on the cluster alone.
    agent = {"type": "dqfd", "demonstrations": str(tmp_path / "there" / "good.safetensors")}
    assert named_files.large_files(named(agent=agent, kubernetes=mounted(tmp_path / "there"))) == []


def test_demonstrations_that_are_gone_are_refused(named, tmp_path):
    agent = {"type": "dqfd", "demonstrations": str(tmp_path / "gone.safetensors")}
    with pytest.raises(UserError, match=r"^agent\.demonstrations cannot go .*gone\.safetensors.*volume_mounts"):
        named_files.large_files(named(agent=agent))


def test_demonstrations_that_are_too_large_are_refused_with_the_ways_out(named, tmp_path, monkeypatch):
    monkeypatch.setattr(named_files, "LARGEST_FILES", 1000)
    made_up(Box((40,)), Discrete(2)).save(tmp_path / "good.safetensors")
    spec = named(agent={"type": "dqfd", "demonstrations": "good.safetensors"})
    with pytest.raises(
        UserError, match=r"agent\.demonstrations names .*good\.safetensors, .*record fewer.*volume_mounts"
    ):
        named_files.large_files(spec)


def test_files_that_an_environment_a_wrapper_or_a_layer_reads_go_along(named, tmp_path):
    (tmp_path / "levels").mkdir()
    (tmp_path / "levels" / "one.txt").write_text("..#")
    (tmp_path / "table.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "noise.json").write_text("{}")
    (tmp_path / "hard").write_text("no path, but a word")
    (tmp_path / ".git").mkdir()
    spec = named(
        environment={
            "id": "worlds:make",
            "settings": {"level": "levels/one.txt", "mode": "hard", "seed": 3},
            "wrappers": [{"type": "mine.Noise", "path": "noise.json"}],
        },
        network=[{"type": "custom", "module": "mine:Table", "arguments": {"path": "table.npy"}}],
    )
    assert named_files.small_files(spec, [tmp_path]) == {
        "levels/one.txt": "..#",
        "noise.json": "{}",
        "table.npy": b"\x93NUMPY",
    }


def test_a_link_goes_along_by_its_own_name(named, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "level.txt").write_text("..#")
    (project / "level.txt").symlink_to(tmp_path / "level.txt")
    spec = named(environment={"id": "worlds:make", "settings": {"level": "./level.txt", "long": "x/" + "y" * 1000}})
    assert named_files.small_files(spec, [project]) == {"level.txt": "..#"}


def test_the_first_folder_wins(named, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "level.txt").write_text(name)
    spec = named(environment={"id": "worlds:make", "settings": {"level": "level.txt"}})
    assert named_files.small_files(spec, [tmp_path / "here", tmp_path / "there"]) == {"level.txt": "here"}


def test_a_folder_is_sent_without_hidden_files(named, tmp_path):
    (tmp_path / "levels" / ".cache").mkdir(parents=True)
    for name in ("one.txt", "two.txt", ".cache/three.txt"):
        (tmp_path / "levels" / name).write_text("")
    spec = named(environment={"id": "worlds:make", "settings": {"levels": "levels/"}})
    assert set(named_files.small_files(spec, [tmp_path])) == {"levels/one.txt", "levels/two.txt"}


@pytest.mark.parametrize("text", ["./", "../", "/", "videos/"])
def test_a_folder_that_may_be_there_to_be_written_to_is_left_alone(named, tmp_path, text):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "one.mp4").write_bytes(bytes(1_000_001))
    spec = named(environment={"id": "worlds:make", "wrappers": [{"type": "mine.Film", "video_folder": text}]})
    assert named_files.small_files(spec, [tmp_path]) == {}


@pytest.mark.parametrize("way", ["absolute", "outside"])
def test_a_file_that_pods_cannot_find_is_refused(named, tmp_path, way):
    project = tmp_path / "project"
    project.mkdir()
    file = tmp_path / "level.txt"
    file.write_text("..#")
    text = str(file) if way == "absolute" else "../level.txt"
    environment = {"id": "worlds:make", "settings": {"inner": {"level": text}}}
    with pytest.raises(UserError, match=r"^environment\.settings\.inner\.level names .*level\.txt, .*volume_mounts"):
        named_files.small_files(named(environment=environment), [project])


def test_a_file_that_pods_have_mounted_stays(named, tmp_path):
    (tmp_path / "level.txt").write_text("..#")
    environment = {"id": "worlds:make", "settings": {"level": str(tmp_path / "level.txt")}}
    assert named_files.small_files(named(environment=environment, kubernetes=mounted(tmp_path)), [tmp_path]) == {}


def test_a_file_that_is_too_large_is_refused_with_the_ways_out(named, tmp_path):
    (tmp_path / "level.bin").write_bytes(np.random.default_rng(1).bytes(1_000_001))
    spec = named(environment={"id": "worlds:make", "settings": {"level": "level.bin"}})
    with pytest.raises(
        UserError, match=r"^environment\.settings\.level names level\.bin, which takes 1\.0 MB, .*image.*volume"
    ):
        named_files.small_files(spec, [tmp_path])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"environment": {"type": "remote", "address": "a:1", "token_file": "/x/token"}}, "environment.token_file"),
        ({"run_mode": "async", "agent": "dqn", "asynchronous": {"token_file": "/x/token"}}, "asynchronous.token_file"),
        (
            {"run_mode": "async", "agent": "dqn", "asynchronous": {"tls_cert": "/x/c.pem", "tls_key": "/x/k.pem"}},
            "asynchronous.tls_cert",
        ),
    ],
)
def test_secrets_are_not_sent_and_refused_where_pods_have_not_mounted_them(named, fields, field):
    with pytest.raises(UserError, match=rf"^{field} names /x/.*no secret is sent; .*volume_mounts"):
        named_files.check(named(**fields))
    named_files.check(named(**fields, kubernetes=mounted("/x")))


def test_certificates_of_a_ray_are_refused_for_pods_mounted_or_not(named):
    fields = {"ray": {"tls": {"certificate": "/x/c", "key": "/x/k", "authority": "/x/a"}}}
    with pytest.raises(UserError, match=r"^ray\.tls is for machines .*leave it out on Kubernetes"):
        named_files.check(named(run_mode="distributed", **fields, kubernetes=mounted("/x")))
    named_files.check(named(run_mode="async", agent="dqn", **fields))


def test_secrets_of_other_run_modes_are_not_checked(named):
    named_files.check(named(asynchronous={"token_file": "/x/token"}))


def test_a_token_in_the_project_does_not_go_along(named, tmp_path):
    (tmp_path / "secret.txt").write_text("0123456789abcdef")
    (tmp_path / "cert.pem").write_text("public")
    environment = {"type": "remote", "address": "a:1", "token_file": "secret.txt", "tls_ca": "cert.pem"}
    spec = named(environment=environment)
    assert named_files.small_files(spec, [tmp_path]) == {"cert.pem": "public"}
    with pytest.raises(UserError, match="STEPPE_ENV_TOKEN"):
        named_files.check(spec)

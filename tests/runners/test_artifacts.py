"""The progress of a run, and the files at its end."""

from __future__ import annotations

import pytest
from runs import experiment, train

from steppe.errors import MissingExtra
from steppe.policies.policy import Policy
from steppe.runners import artifacts
from steppe.tracking.metrics import read_metrics


def _shown(folder, spec, **keywords):
    shown = []
    outcome = train(folder, spec, show=shown.append, **keywords)
    return outcome, shown


def test_the_speed_of_the_first_chunk_is_not_shown_since_it_includes_compilation(tmp_path):
    _, shown = _shown(tmp_path, experiment(total_timesteps=64 * 20, summary_frequency="64t"))
    speeds = [progress.steps_per_second for progress in shown if progress.phase == "training"]
    assert speeds[0] == 0.0
    assert all(speed > 0.0 for speed in speeds[1:])
    assert len(speeds) > 1
    written = [record["steps_per_second"] for record in read_metrics(tmp_path)]
    assert written[0] is None
    assert all(speed > 0.0 for speed in written[1:])


def test_a_run_compiles_after_its_first_checkpoint_and_says_so(tmp_path):
    _, shown = _shown(tmp_path, experiment(total_timesteps=64))
    # The settings are reported during the second of these compilations.
    assert [progress.phase for progress in shown if progress.effective is None] == [
        "compiling",
        "saving",
        "compiling",
        "training",
        "saving",
        "exporting",
    ]


@pytest.mark.parametrize(
    ("video", "request_", "phase"),
    [(True, None, "filming"), (False, None, "exporting"), (True, "pause", "exporting")],
)
def test_a_video_is_announced_only_if_one_is_made(tmp_path, monkeypatch, video, request_, phase):
    made = []
    monkeypatch.setattr(artifacts, "_leave_video", lambda *_: made.append("film"))
    _, shown = _shown(tmp_path, experiment(total_timesteps=64, video=video), request=lambda: request_)
    assert shown[-1].phase == phase
    assert made == (["film"] if phase == "filming" else [])


def test_a_missing_package_is_noted_and_the_rest_is_left(tmp_path, monkeypatch, caplog):
    made = []

    def without_onnx(self, path):
        raise MissingExtra("ONNX export", "onnx")

    monkeypatch.setattr(Policy, "export_onnx", without_onnx)
    monkeypatch.setattr(artifacts, "_leave_video", lambda *_: made.append("film"))
    outcome, _ = _shown(tmp_path, experiment(total_timesteps=64, video=True))
    assert outcome.state == "completed"
    assert outcome.notices == ['ONNX export needs an optional package; run: pip install "steppe[onnx]"']
    assert made == ["film"]
    assert [record.message for record in caplog.records].count(outcome.notices[0]) == 1


def test_a_film_that_breaks_fails_no_run(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no such colour")

    monkeypatch.setattr(artifacts, "_leave_video", broken)
    outcome, _ = _shown(tmp_path, experiment(total_timesteps=64, video=True))
    assert (outcome.state, outcome.notices) == ("completed", ["no video: ValueError: no such colour"])
    assert (tmp_path / "policy" / "policy.onnx").exists()


def test_a_film_of_an_environment_that_is_not_here_is_a_notice(tmp_path):
    train(tmp_path, experiment(total_timesteps=64))
    spec = experiment("nowhere_installed:World", total_timesteps=64, video=True)
    (notice,) = artifacts.leave_video_and_onnx(spec, tmp_path, "completed")
    assert notice.startswith('no video: environment "nowhere_installed:World" names the module')

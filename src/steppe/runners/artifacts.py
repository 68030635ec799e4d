"""The ONNX file and the video of a finished run."""

from __future__ import annotations

import logging
from pathlib import Path

from steppe.errors import MissingEnvironment, SteppeError
from steppe.policies.policy import Policy, load_policy
from steppe.specs.allowed_modules import named_by
from steppe.specs.experiment import ExperimentSpec

log = logging.getLogger(__name__)


def is_filmed(spec: ExperimentSpec, state: str) -> bool:
    """Whether a run that ends in this state makes a video."""
    return spec.video and state == "completed"


def leave_video_and_onnx(spec: ExperimentSpec, folder: Path, state: str) -> list[str]:
    """Makes both if possible; returns a notice for each that could not be made, which does not fail the run."""
    policy = load_policy(folder / "policy", allow_modules=named_by(spec))
    steps = {"ONNX file": _leave_onnx} | ({"video": _leave_video} if is_filmed(spec, state) else {})
    notices = []
    for what, step in steps.items():
        try:
            step(spec, policy, folder)
        except MissingEnvironment as error:
            notices.append(f"no {what}: {error}")
        except SteppeError as error:
            notices.append(str(error))
        except Exception as error:
            log.exception("no %s", what)
            notices.append(f"no {what}: {type(error).__name__}: {error}")
    for notice in notices:
        log.warning(notice)
    return notices


def _leave_onnx(spec: ExperimentSpec, policy: Policy, folder: Path) -> None:
    if policy.description.network is not None:
        policy.export_onnx(folder / "policy" / "policy.onnx")


def _leave_video(spec: ExperimentSpec, policy: Policy, folder: Path) -> None:
    from steppe.envs.episode_recording import record_episode
    from steppe.records.video import write_gif

    start = getattr(policy.description.action, "start", 0)
    recording = record_episode(
        spec.environment,
        lambda observation: policy.act(observation) - start,
        seed=spec.seed or 0,
        max_timesteps_per_episode=spec.max_timesteps_per_episode,
        repeat_actions=spec.repeat_actions,
    )
    if recording.frames is None:
        raise SteppeError(f"no video: {recording.reason}")
    path = folder / "videos" / f"{policy.description.timestep}.gif"
    path.parent.mkdir(exist_ok=True)
    write_gif(recording.frames, path, recording.fps)

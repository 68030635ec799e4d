"""What a finished run leaves behind besides numbers: its policy as ONNX and a film of it."""

from __future__ import annotations

import logging
from pathlib import Path

from steppe.errors import SteppeError
from steppe.records.policy import Policy, load_policy
from steppe.specs.experiment import ExperimentSpec

log = logging.getLogger(__name__)


def leave_video_and_onnx(spec: ExperimentSpec, folder: Path, state: str) -> list[str]:
    """Both where they can be had; a missing optional package or an environment without pictures is only noted."""
    policy = load_policy(folder / "policy")
    steps = [lambda: _leave_onnx(policy, folder)]
    if spec.video and state == "completed":
        steps.append(lambda: _leave_video(spec, policy, folder))
    notices = []
    for step in steps:
        try:
            step()
        except SteppeError as error:
            log.info("%s", error)
            notices.append(str(error))
    return notices


def _leave_onnx(policy: Policy, folder: Path) -> None:
    if policy.description.network is not None:
        policy.export_onnx(folder / "policy" / "policy.onnx")


def _leave_video(spec: ExperimentSpec, policy: Policy, folder: Path) -> None:
    from steppe.envs.rendering import record_episode
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

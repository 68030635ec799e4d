"""A replay memory in a checkpoint: only the filled rows, and the frames that they need."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steppe.memories.frames import Frames, FrameState
from steppe.memories.replay import ReplayState, Timesteps


def compact(state: ReplayState) -> ReplayState:
    """A copy of the memory without its empty rows and frames, as NumPy arrays."""
    head, filled = int(state.head), int(state.filled)
    timesteps = [np.asarray(leaf) for leaf in state.timesteps]
    kept = Timesteps(*(np.array(leaf[_before(head, filled, len(leaf))]) for leaf in timesteps))
    frames: Any = () if state.frames == () else _compact_frames(state.frames)  # type: ignore[arg-type]
    scalars = (np.array(state.head), np.array(state.filled), np.array(state.tree), np.array(state.highest))
    return ReplayState(kept, *scalars, frames)


def restore(template: ReplayState, saved: ReplayState) -> ReplayState:
    """The inverse of `compact`; `template` only needs shapes and dtypes.

    Also restores the format of older versions: all rows, with whole observations. ValueError if it is that of another
    memory.
    """
    head, filled = int(saved.head), int(saved.filled)
    rows = template.timesteps.rewards.shape[0]
    count = len(saved.timesteps.rewards)
    if not (0 <= filled <= rows and 0 <= head < rows and count in (filled, rows)):
        raise ValueError(f"the memory has {rows:,} rows, but {count:,} were saved")
    if count == rows and filled < rows:
        saved = saved._replace(timesteps=Timesteps(*(leaf[_before(head, filled, rows)] for leaf in saved.timesteps)))
    if template.frames != () and saved.frames == ():
        return _in_frames(template, saved)
    timesteps = []
    for like, leaf in zip(template.timesteps, saved.timesteps, strict=True):
        _check(like.shape[1:], like.dtype, leaf, leaf.shape[1:])
        whole = np.zeros(like.shape, like.dtype)
        whole[_before(head, filled, rows)] = leaf
        timesteps.append(whole)
    _check(template.tree.shape, template.tree.dtype, saved.tree, saved.tree.shape)
    frames: Any = ()
    if template.frames != ():
        frames = _restore_ring(template.frames, saved.frames)  # type: ignore[arg-type]
    return ReplayState(Timesteps(*timesteps), saved.head, saved.filled, saved.tree, saved.highest, frames)


def _before(head: int, count: int, rows: int) -> Any:
    """The index of the `count` rows before `head`, oldest first, a slice if possible; all rows stay in their order."""
    if count == rows:
        return slice(0, rows)
    return slice(head - count, head) if head >= count else np.arange(head - count, head) % rows


def _compact_frames(state: FrameState) -> FrameState:
    ring, heads, used = (np.asarray(leaf) for leaf in state[:3])
    return FrameState(_newest(ring, heads, used), heads.copy(), used.copy(), np.array(state.latest))


def _newest(ring: np.ndarray, heads: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The frames [U, N, ...] that rows still need, the newest last; padded by zeros in front."""
    most = int(used.max(initial=0))
    newest = np.zeros((most, *ring.shape[1:]), ring.dtype)
    for env, (head, count) in enumerate(zip(heads.tolist(), used.tolist(), strict=True)):
        newest[most - count :, env] = ring[_before(head, count, len(ring)), env]
    return newest


def _restore_ring(template: FrameState, saved: FrameState) -> FrameState:
    slots, envs = template.ring.shape[:2]
    _check(template.ring.shape[1:], template.ring.dtype, saved.ring, saved.ring.shape[1:])
    _check(template.latest.shape, template.latest.dtype, saved.latest, saved.latest.shape)
    heads, used = (np.asarray(leaf) for leaf in saved[1:3])
    most = len(saved.ring)
    fits = heads.shape == used.shape == (envs,) and most <= slots and int(used.max(initial=0)) == most
    if not (fits and (heads >= 0).all() and (heads < slots).all() and (used >= 0).all()):
        raise ValueError(f"the memory has room for {slots:,} frames, but {most:,} were saved for other places")
    ring = np.zeros(template.ring.shape, template.ring.dtype)
    for env, (head, count) in enumerate(zip(heads.tolist(), used.tolist(), strict=True)):
        ring[_before(head, count, slots), env] = saved.ring[most - count :, env]
    return FrameState(ring, saved.head, saved.used, saved.latest)


def _in_frames(template: ReplayState, saved: ReplayState) -> ReplayState:
    """Converts a memory of whole observations by adding its rows one by one."""
    frames: Any = template.frames
    rows, envs = template.timesteps.rewards.shape
    shape = saved.timesteps.observations.shape[2:]
    is_first = frames.latest.shape[3:] == shape[1:]
    cutting = Frames(frames.latest.shape[1], 0 if is_first else -1)
    example = jax.ShapeDtypeStruct(shape, frames.ring.dtype)
    whole = (envs, *shape)
    for leaf in (saved.timesteps.observations, saved.timesteps.next_observations):
        _check(whole, frames.ring.dtype, leaf, leaf.shape[1:])
    if (cutting.count, *cutting.frame_shape(shape)) != frames.latest.shape[1:]:
        raise ValueError(f"the memory has frames of shape {list(frames.latest.shape[2:])}, not {list(shape)}")
    write = jax.jit(cutting.write, donate_argnums=0)
    head, filled = int(saved.head), int(saved.filled)
    state = jax.tree.map(jnp.asarray, cutting.init(frames.ring.shape[0], envs, example))
    starts = np.zeros((2, rows, envs), np.int32)
    kept_rows = jnp.int32(0)
    for number in range(filled):
        row = (head - filled + number) % rows
        pictures = (saved.timesteps.observations, saved.timesteps.next_observations)
        observed, successors = (leaf[row if filled == rows else number][None] for leaf in pictures)
        state, start, next_start, kept_rows = write(state, starts[0], jnp.int32(row), kept_rows, observed, successors)
        starts[0, row], starts[1, row] = np.asarray(start)[0], np.asarray(next_start)[0]
    if kept_rows < filled and saved.tree.size:
        raise ValueError("the memory of an older version has too short episodes for the room that frames have now")
    slots = (leaf[_before(head, filled, rows)] for leaf in starts)
    in_slots = saved.timesteps._replace(**dict(zip(("observations", "next_observations"), slots, strict=True)))
    saved = saved._replace(timesteps=in_slots, frames=_compact_frames(jax.tree.map(np.asarray, state)))
    return restore(template, saved)._replace(filled=np.int32(kept_rows))


def _check(shape: tuple[int, ...], dtype: Any, leaf: Any, found: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(found) or np.dtype(dtype) != leaf.dtype:
        raise ValueError(f"the memory keeps {np.dtype(dtype)} {list(shape)}, but {leaf.dtype} {list(found)} was saved")

"""Joins the servers' states for a checkpoint, and splits a joined state for any number of servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from steppe.errors import CheckpointError
from steppe.runners.engines.distributed.gradient_tape import OptimizerRange
from steppe.runners.engines.distributed.parameter_server import State


def joined_state(states: Sequence[State], borders: Sequence[int], parts: Sequence[OptimizerRange]) -> State:
    """Joins the servers' states into arrays over all parameters; known pushes are left out, since no worker stays."""
    whole = {
        # A server that replaced another may lag behind the rest.
        "counters": np.max([state["counters"] for state in states], axis=0),
        "params": np.concatenate([state["params"] for state in states]),
        "target": np.concatenate([state["target"] for state in states]),
    }
    whole |= {name: array for name, array in states[0].items() if name.startswith("seen/")}
    pieces: dict[str, list[np.ndarray]] = {}
    for state, ranges in zip(states, _ranges_of_servers(borders, parts), strict=True):
        for own_index, (part, _) in enumerate(ranges):
            prefix = f"optimizer/{own_index}/"
            for name, array in state.items():
                if name.startswith(prefix):
                    pieces.setdefault(f"optimizer/{part}/{name.removeprefix(prefix)}", []).append(array)
    for name, arrays in pieces.items():
        whole[name] = np.concatenate(arrays) if arrays[0].ndim else np.max(arrays)
    return whole


def split_state(whole: State, borders: Sequence[int], parts: Sequence[OptimizerRange]) -> list[State]:
    """Splits a joined state into one state for each server."""
    if whole["params"].shape != (borders[-1],):
        raise CheckpointError(
            f"the checkpoint holds {whole['params'].size:,} parameters, but this experiment has {borders[-1]:,}; it "
            "was made by an experiment with other settings"
        )
    states = []
    for index, ((start, stop), ranges) in enumerate(
        zip(pairwise(borders), _ranges_of_servers(borders, parts), strict=True)
    ):
        state = {
            "counters": whole["counters"],
            "params": whole["params"][start:stop],
            "target": whole["target"][start:stop] if len(whole["target"]) else whole["target"],
            "known": np.zeros((0, 3), np.int64),
        }
        if index == 0:
            state |= {name: array for name, array in whole.items() if name.startswith("seen/")}
        for own_index, (part, inside) in enumerate(ranges):
            prefix = f"optimizer/{part}/"
            for name, array in whole.items():
                if name.startswith(prefix):
                    key = f"optimizer/{own_index}/{name.removeprefix(prefix)}"
                    state[key] = array[inside] if array.ndim else array
        states.append({name: np.array(array) for name, array in state.items()})
    return states


def _ranges_of_servers(borders: Sequence[int], parts: Sequence[OptimizerRange]) -> Iterator[list[tuple[int, slice]]]:
    """For each server: (optimiser range, slice of that range) of everything that it holds."""
    for start, stop in pairwise(borders):
        yield [
            (index, slice(max(part.start, start) - part.start, min(part.stop, stop) - part.start))
            for index, part in enumerate(parts)
            if part.start < stop and part.stop > start
        ]

"""One Steppe run in a process of its own, through the Python API; prints its costs as one line of JSON.

It measures the whole runner: progress, status, metrics.jsonl, TensorBoard and the final checkpoint and policies.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import steppe
from process_tree import TreeWindow
from steppe.runners import Progress
from window import Window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fields", type=json.loads, help="the fields of the experiment, as JSON")
    parser.add_argument("--warm-up", type=int, required=True, help="timesteps before the measuring begins")
    parser.add_argument("--tree", action="store_true", help="count the CPU time of worker processes too")
    arguments = parser.parse_args()

    window = (TreeWindow if arguments.tree else Window)(arguments.warm_up)
    # A checkpoint is due at the last timestep, so that it is written inside the window and not after it.
    fields = {"saver_frequency": f"{arguments.fields['total_timesteps']}t"} | arguments.fields

    def mark(progress: Progress) -> None:
        if progress.phase == "training":
            window.mark(progress.timestep)

    with tempfile.TemporaryDirectory() as folder:
        experiment = steppe.Experiment(folder=Path(folder) / "run", **fields)
        experiment.start(on_progress=mark)
    print(json.dumps({"version": steppe.__version__, **window.costs()}))


if __name__ == "__main__":
    main()

"""The defaults learn: the score of each agent's default settings, on ten seeds that were not used to choose them.

Each seed trains from scratch, then the last policy plays 50 fresh episodes. Without arguments every row of
`default_scores_rows.py` is trained; with an agent and an environment only theirs. A score that was measured before with
the same settings is not measured again, so an interrupted run continues where it was. Scores do not depend on how busy
the machine is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from default_scores_rows import ROWS, Row

RESULTS = Path(__file__).parent / "results" / "default_scores.json"
FRESH_SEEDS = tuple(range(101, 111))
"""The seeds of the tables. Settings were chosen on seeds below 100."""
EPISODES = 50
EVALUATION_SEED = 1_000_000

Record = dict[str, Any]


def main() -> int:
    arguments = _arguments()
    rows = [row for row in ROWS if arguments.agent in (None, row.agent)]
    rows = [row for row in rows if arguments.environment in (None, row.environment)]
    if arguments.timesteps is not None:
        rows = [row for row in rows if row.timesteps == arguments.timesteps]
    if not rows and arguments.agent and arguments.environment and arguments.timesteps:
        rows = [Row(arguments.agent, arguments.environment, arguments.timesteps)]
    if not rows:
        sys.exit("error: no such row; give an agent, an environment and --timesteps")
    results = Results(arguments.results)
    if arguments.table:
        print(table(results))
        return 0
    for row in rows:
        measure(row, arguments.set, arguments.seeds, results)
    return 0


def measure(row: Row, sets: list[str], seeds: tuple[int, ...], results: Results) -> None:
    """Trains and evaluates the seeds that are not in the results yet."""
    from steppe.runners import setup
    from steppe.spec_files import load_experiment

    fields = {"environment": row.environment, "agent": row.agent, "total_timesteps": row.timesteps, "name": "run"}
    spec = load_experiment(None, fields, [*row.sets, *sets], Path.cwd(), options=False)
    record = results.record(row, spec, setup.num_envs_of(spec), sets)
    missing = [seed for seed in seeds if str(seed) not in record["scores"]]
    if missing:
        engine = setup.make_engine(spec, shards=1)
        try:
            for seed in missing:
                record["scores"][str(seed)] = score(engine, row.timesteps, seed)
                results.write()
                print(f"{row} seed {seed}: {json.dumps(record['scores'][str(seed)])}", file=sys.stderr, flush=True)
        finally:
            engine.close()
    greedy = [record["scores"][str(seed)]["greedy"] for seed in seeds]
    sampled = [record["scores"][str(seed)]["sampled"] for seed in seeds]
    print(f"{row} {' '.join(sets)}: greedy {shown(greedy)}; sampled {shown(sampled)}; {row.judged(greedy)}", flush=True)


def score(engine: Any, timesteps: int, seed: int) -> dict[str, float]:
    """Mean returns of the policy at the end of the training: greedy, sampled, and while training."""
    from steppe.runners._base import ChunkLimits

    started = time.perf_counter()
    engine.begin(seed)
    timestep = 0
    while timestep < timesteps:
        left = -(-(timesteps - timestep) // engine.timesteps_per_iteration)
        chunk = engine.advance(min(left, engine.most_iterations), timestep, ChunkLimits(None, None))
        timestep += int(chunk.columns["timesteps"].sum())
        if not chunk.is_healthy:
            raise SystemExit(f"error: seed {seed} diverged at timestep {timestep:,}")
    greedy, _ = engine.evaluate(EPISODES, True, EVALUATION_SEED + seed)
    sampled, _ = engine.evaluate(EPISODES, False, EVALUATION_SEED + seed)
    seconds = time.perf_counter() - started
    training = float(chunk.columns["mean_return"][-1])
    return {
        "greedy": round(greedy, 3),
        "sampled": round(sampled, 3),
        "training": round(training, 3),
        "seconds": round(seconds, 1),
    }


class Results:
    """One file with all scores, by agent, environment, timesteps and effective settings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[Record] = []
        if path.exists():
            self._records = json.loads(path.read_text())["records"]

    def record(self, row: Row, spec: Any, num_envs: int, sets: list[str]) -> Record:
        """The record of these settings; makes one if there is none."""
        from steppe.agents import agent_class

        settings = spec.agent.settings_as(agent_class(spec.agent).Settings).model_dump(mode="json", exclude_none=True)
        key = {
            "agent": row.agent,
            "environment": row.environment,
            "timesteps": row.timesteps,
            "set": [*row.sets, *sets],
            "settings": settings,
            "normalizes": [spec.environment.normalize_observations, spec.environment.normalize_rewards],
            "network": None if spec.network is None else spec.network.model_dump(mode="json"),
            "num_envs": num_envs,
        }
        for record in self._records:
            if {name: record[name] for name in key} == key:
                return record
        record = key | {"scores": {}}
        self._records.append(record)
        return record

    def newest(self, row: Row) -> Record | None:
        """The newest record of a row without `--set` of the command line."""
        same = [
            record
            for record in self._records
            if (record["agent"], record["environment"], record["timesteps"]) == row[:3]
            and record["set"] == list(row.sets)
        ]
        return same[-1] if same else None

    def write(self) -> None:
        """Replaces the file by a rename, so an interrupted run loses nothing."""
        self._path.parent.mkdir(exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        content = {"claim": __doc__, "command": "python benchmarks/default_scores.py", "records": self._records}
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(self._path)


def table(results: Results) -> str:
    """The table of docs/agents.md."""
    lines = ["| agent | environment | timesteps | greedy | sampled | bar |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        record = results.newest(row)
        scores = [record["scores"].get(str(seed)) for seed in FRESH_SEEDS] if record else []
        if not scores or None in scores:
            greedy, sampled = "not measured yet", ""
        else:
            greedy, sampled = (shown([each[name] for each in scores]) for name in ("greedy", "sampled"))
        lines.append(f"| `{row.agent}` | {row.name} | {row.timesteps:,} | {greedy} | {sampled} | {row.bar_shown} |")
    return "\n".join(lines)


def shown(scores: list[float]) -> str:
    """The median and the range, with two digits if all scores are small."""
    digits = 2 if max(map(abs, scores)) < 10 else 0
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(scores), median(scores), max(scores)))
    return f"{middle} ({low} to {high})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", nargs="?", help="only this agent")
    parser.add_argument("environment", nargs="?", help="only this environment")
    parser.add_argument("--timesteps", type=int, help="only rows of this length, or the length of a row of your own")
    parser.add_argument("--seeds", type=_seeds, default=FRESH_SEEDS, help="such as 1-5 or 1,2,3; default: 101-110")
    parser.add_argument("--set", action="append", default=[], help="a setting to try, such as agent.epochs=10")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the scores are kept")
    parser.add_argument("--table", action="store_true", help="print the table of the rows measured so far")
    return parser.parse_args()


def _seeds(word: str) -> tuple[int, ...]:
    if "-" in word:
        first, last = word.split("-")
        return tuple(range(int(first), int(last) + 1))
    return tuple(int(each) for each in word.split(","))


if __name__ == "__main__":
    sys.exit(main())

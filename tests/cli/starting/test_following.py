"""The output about a run on a cluster while it is watched."""

from __future__ import annotations

from steppe.cli.starting.following import StatusFeed
from steppe.display.progress import TrainingDisplay
from steppe.experiments.run_folder.store import Status
from steppe.specs.experiment import ExperimentSpec


class Said(TrainingDisplay):
    """Remembers its announcements."""

    def __init__(self) -> None:
        super().__init__(ExperimentSpec(name="first", environment="CartPole-v1", agent="random"))
        self.sentences: list[str] = []

    def announce(self, sentence: str) -> None:
        self.sentences.append(sentence)


def test_alternating_sentences_are_announced_once_until_all_is_well() -> None:
    shows = Said()
    watching = StatusFeed(shows)
    for phase in ("no image (refused)", "no image (waits)", "no image (refused)", "training", "no image (waits)"):
        watching(Status(state="running", phase=phase))
    assert shows.sentences == ["no image (refused)", "no image (waits)", "no image (waits)"]

"""What happens to episodes whose environments are lost and found again."""

from __future__ import annotations

import numpy as np

from steppe.errors import EnvironmentFault


class EpisodesCut(EnvironmentFault):
    """The environments were lost in the middle of a step, which was not taken, and have started new episodes since.

    Who goes on must take the timestep before as truncated and act on `observations`, [N, ...], the first ones of the
    new episodes. Who does not know this error ends as with any fault, so nobody learns from a step that never was.
    """

    def __init__(self, sentence: str, observations: np.ndarray) -> None:
        super().__init__(sentence)
        self.observations = observations

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from steppe.errors import StateError
from steppe.experiments.hints import CALLS
from steppe.experiments.run_folder.states import ENDED, LIVE, STATES, TRANSITIONS, Event, State, advance

# The table, written by hand a second time: state: event -> next.
EDGES = """
created:   start -> starting, renew -> created, delete -> created
starting:  train -> running, ask_pause -> pausing, fail -> failed, withdraw -> completed, stop -> stopped
running:   ask_pause -> pausing, complete -> completed, fail -> failed, stop -> stopped
pausing:   ask_pause -> pausing, pause -> paused, complete -> completed, fail -> failed, stop -> stopped
paused:    resume -> starting, stop -> stopped, renew -> created, delete -> paused
completed: resume -> starting, renew -> created, delete -> completed
failed:    resume -> starting, renew -> created, delete -> failed
stopped:   resume -> starting, renew -> created, delete -> stopped
"""


def _expected() -> dict[tuple[str, str], str]:
    edges = {}
    for line in EDGES.strip().splitlines():
        state, _, rest = line.partition(":")
        for edge in rest.split(","):
            event, _, following = edge.partition("->")
            edges[state.strip(), event.strip()] = following.strip()
    return edges


@pytest.mark.parametrize(("state", "event"), _expected())
def test_every_edge_leads_where_it_should(state: State, event: Event) -> None:
    assert advance(state, event) == _expected()[state, event]


@pytest.mark.parametrize(
    ("state", "event"), sorted(set(itertools.product(get_args(State), get_args(Event))) - set(_expected()))
)
def test_every_other_edge_is_forbidden(state: State, event: Event) -> None:
    with pytest.raises(StateError, match=rf'experiment "first" (is|has) {state} (and cannot be|already)'):
        advance(state, event, "first")


def test_every_state_is_created_live_or_ended() -> None:
    assert set(STATES) == set(get_args(State)) == {"created"} | LIVE | ENDED
    assert not LIVE & ENDED


def test_every_state_can_be_reached() -> None:
    reached = {"created"}
    for _ in STATES:
        reached |= {following for (state, _), following in TRANSITIONS.items() if state in reached}
    assert reached == set(STATES)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_starting_an_ended_experiment_says_how_to_resume_or_start_anew(state: State) -> None:
    with pytest.raises(StateError, match=r"experiment resume -e first.*start -e first --force"):
        advance(state, "start", "first")


def test_in_python_the_way_out_is_a_call() -> None:
    with pytest.raises(StateError) as error:
        advance("completed", "start", "first", CALLS)
    assert str(error.value) == (
        'experiment "first" is completed and cannot be started; to train on use: experiment.start(resume=True), '
        "to start anew: experiment.start(force=True) (the old results are kept beside)"
    )

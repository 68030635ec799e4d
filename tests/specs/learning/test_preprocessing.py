import pytest
from pydantic import BaseModel

from steppe.errors import SpecError
from steppe.specs.learning.preprocessing import (
    Clip,
    Divide,
    ExpandDims,
    Grayscale,
    ImageResize,
    Normalize,
    PreprocessingSpec,
    RewardPreprocessingSpec,
    RunningStandardize,
    Sequence,
    Standardize,
)
from steppe.specs.loading.validation import validate

RESIZE = {"type": "image_resize", "width": 84, "height": 84}


class Holder(BaseModel):
    """The preprocessing settings of an agent."""

    states_preprocessing: PreprocessingSpec | None = None
    reward_preprocessing: RewardPreprocessingSpec | None = None


def stages(written):
    return validate(PreprocessingSpec, written).root


def test_the_stages_of_the_old_manual_are_read_as_written():
    assert stages(
        [RESIZE, {"type": "grayscale"}, {"type": "divide", "scale": 255}, {"type": "sequence", "length": 4}]
    ) == (
        ImageResize(type="image_resize", width=84, height=84),
        Grayscale(type="grayscale", weights=(0.299, 0.587, 0.114), remove_rank=False),
        Divide(type="divide", scale=255.0),
        Sequence(type="sequence", length=4, add_rank=False),
    )


def test_defaults_are_those_of_the_old_manual():
    assert stages(["sequence", "standardize", "normalize", "expand_dims", "running_standardize"]) == (
        Sequence(type="sequence", length=2, add_rank=False),
        Standardize(type="standardize", across_batch=False),
        Normalize(type="normalize"),
        ExpandDims(type="expand_dims", axis=-1),
        RunningStandardize(type="running_standardize", axis=None, reset_after_batch=False),
    )


@pytest.mark.parametrize(
    "written",
    [
        "grayscale",
        ["grayscale"],
        {"type": "grayscale"},
        [{"type": "grayscale"}],
    ],
)
def test_a_bare_word_and_a_single_stage_are_understood(written):
    assert stages(written) == (Grayscale(type="grayscale"),)


def test_no_stages_are_fine():
    assert stages([]) == ()


def test_options_have_their_other_spellings():
    assert stages([{"type": "divide", "value": 10}]) == (Divide(type="divide", scale=10.0),)
    assert stages([{"type": "clip", "min": -1, "max": 1}]) == (Clip(type="clip", min_value=-1.0, max_value=1.0),)
    assert stages([{"type": "sequence", "add_rank": -1}]) == (Sequence(type="sequence", add_rank=True),)
    running = {"type": "running_standardize", "axis": 0, "reset_after_batch": False}
    assert stages([running]) == (RunningStandardize(type="running_standardize", axis=0),)


def test_specs_are_hashable_and_survive_being_written_down():
    spec = validate(PreprocessingSpec, [RESIZE, "grayscale", {"type": "clip", "min": 0, "max": 9}])
    again = PreprocessingSpec.model_validate(spec.model_dump(mode="json"))
    assert again == spec
    assert hash(again) == hash(spec)
    assert PreprocessingSpec.model_validate(spec) == spec


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            ["grayscal"],
            'unknown preprocessing stage "grayscal" in a.json at states_preprocessing[0].type; did you mean '
            '"grayscale"?',
        ),
        (
            [RESIZE, {"type": "resize_image"}],
            'unknown preprocessing stage "resize_image" in a.json at states_preprocessing[1].type; it must be '
            '"sequence", "standardize", "running_standardize", "normalize", "grayscale", "image_resize", "divide", '
            '"clip", "flatten" or "expand_dims"',
        ),
        (
            [RESIZE | {"heigth": 84}],
            'unknown field "heigth" in a.json at states_preprocessing[0].heigth; did you mean "height"?',
        ),
        (
            {"type": "sequence", "lenght": 4},
            'unknown field "lenght" in a.json at states_preprocessing.lenght; did you mean "length"?',
        ),
        (
            ["image_resize"],
            'missing field "width" in a.json at states_preprocessing[0]; it has no default, so it must be given (and '
            "1 more mistake)",
        ),
        (
            [{"type": "divide"}],
            'missing field "scale" in a.json at states_preprocessing[0]; it has no default, so it must be given',
        ),
        (
            [{"type": "divide", "value": 0}],
            "wrong value 0 in a.json at states_preprocessing[0].value; it must be more than 0",
        ),
        (
            [{"type": "clip", "min": 2, "max": 1}],
            "wrong settings in a.json at states_preprocessing[0]; min_value must be less than max_value",
        ),
        (
            [{"type": "grayscale", "weights": [0.5, 0.5]}],
            "wrong value [0.5, 0.5] in a.json at states_preprocessing[0].weights; it must have at least 3 items",
        ),
        (
            [{"type": "sequence", "add_rank": 1}],
            "wrong value 1 in a.json at states_preprocessing[0].add_rank; the new axis is the last one: true (or -1) "
            "adds it, false does not",
        ),
        (
            [{"type": "standardize", "across_batch": True}],
            "wrong settings in a.json at states_preprocessing[0]; what an observation becomes must not depend on "
            'others beside it, since a policy also acts on one alone; leave across_batch out, or use "running_'
            'standardize"',
        ),
        (
            [{"type": "running_standardize", "reset_after_batch": True}],
            "wrong value true in a.json at states_preprocessing[0].reset_after_batch; statistics that are forgotten "
            "again and again would make the same value look different each time; leave reset_after_batch out",
        ),
        (
            [{"type": "running_standardize", "axis": 1}],
            "wrong value 1 in a.json at states_preprocessing[0].axis; each number has its own statistics over "
            "everything seen so far; leave axis out",
        ),
        (
            ["running_standardize", "flatten"],
            'wrong value [{"type": "running_standardize"}, {"type": "flatten"}] in a.json at states_preprocessing; the '
            'agent keeps the statistics of "running_standardize", after all other stages; make it the last one',
        ),
        (
            {"width": 84, "height": 84},
            'missing field "type" in a.json at states_preprocessing; it has no default, so it must be given',
        ),
        (4, "wrong value 4 in a.json at states_preprocessing; it must be a list"),
    ],
)
def test_a_mistake_about_observations_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(Holder, {"states_preprocessing": written}, source="a.json")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("written", "ending"),
    [
        ("grayscale", "a reward is one number, not an image; remove this stage"),
        (RESIZE, "a reward is one number, not an image; remove this stage"),
        ("sequence", "a reward is one number, and agents learn from one at a time; remove this stage"),
        ("flatten", "a reward is one number, without axes; remove this stage"),
        ("expand_dims", "a reward is one number, without axes; remove this stage"),
        (
            "normalize",
            'a reward is one number, always 0 by its own minimum and maximum; use "clip" or "running_standardize"',
        ),
        (
            "standardize",
            'a reward is one number, always 0 by its own mean; set across_batch to true, or use "running_standardize"',
        ),
    ],
)
def test_a_stage_that_makes_no_sense_for_a_reward_is_refused(written, ending):
    with pytest.raises(SpecError) as error:
        validate(Holder, {"reward_preprocessing": [{"type": "clip", "min": -1, "max": 1}, written]}, source="a.json")
    assert str(error.value) == f"wrong settings in a.json at reward_preprocessing[1]; {ending}"


def test_rewards_take_the_stages_that_make_sense():
    written = [{"type": "divide", "scale": 2}, {"type": "clip", "min": -1, "max": 1}, "running_standardize"]
    assert [stage.type for stage in validate(RewardPreprocessingSpec, written).root] == [
        "divide",
        "clip",
        "running_standardize",
    ]
    assert validate(RewardPreprocessingSpec, {"type": "standardize", "across_batch": True}).root


def test_rewards_are_standardized_once():
    with pytest.raises(SpecError, match='"standardize" and "running_standardize" undo each other'):
        validate(RewardPreprocessingSpec, [{"type": "standardize", "across_batch": True}, "running_standardize"])

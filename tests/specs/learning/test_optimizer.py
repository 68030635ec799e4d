"""Optimisers in TensorForce's words."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from steppe.errors import SpecError
from steppe.spec_files import read_agent
from steppe.specs._base import Spec
from steppe.specs.learning.optimizer import (
    Adadelta,
    Adagrad,
    Adam,
    ClippedStep,
    Evolutionary,
    GradientDescent,
    Momentum,
    MultiStep,
    Nadam,
    NaturalGradient,
    OptimizedStep,
    OptimizerSpec,
    RMSProp,
    SubsamplingStep,
)
from steppe.specs.loading.validation import validate


class Holder(Spec):
    """Settings with an optimiser, like those of an agent."""

    optimizer: OptimizerSpec = Adam()
    """The optimiser."""


PLAIN = {
    "adam": Adam,
    "nadam": Nadam,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "rmsprop": RMSProp,
    "momentum": Momentum,
    "gradient_descent": GradientDescent,
    "evolutionary": Evolutionary,
    "natural_gradient": NaturalGradient,
}
WRAPPERS = {
    "clipped_step": (ClippedStep, {"clipping_value": 0.1}),
    "multi_step": (MultiStep, {"num_steps": 3}),
    "optimized_step": (OptimizedStep, {"ls_max_iterations": 3}),
    "subsampling_step": (SubsamplingStep, {"fraction": 0.5}),
}


def read(optimizer):
    return validate(Holder, {"optimizer": optimizer}, source="agent.json").optimizer


@pytest.mark.parametrize("name", PLAIN)
def test_a_word_is_an_optimiser_without_options(name):
    assert read(name) == read({"type": name}) == PLAIN[name]()


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_holds_another_optimiser_as_a_word_or_an_object(name):
    kind, options = WRAPPERS[name]
    wrapped = read({"type": name, **options, "optimizer": "rmsprop"})
    assert isinstance(wrapped, kind)
    assert wrapped.optimizer == RMSProp()
    nested = read({"type": name, **options, "optimizer": {"type": name, **options, "optimizer": {"type": "adam"}}})
    assert nested.optimizer == kind(**options, optimizer=Adam())
    for option, value in options.items():
        assert getattr(wrapped, option) == value


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_around_nothing_is_refused(name):
    _, options = WRAPPERS[name]
    with pytest.raises(SpecError, match=r'^missing field "optimizer" in agent\.json at optimizer'):
        read({"type": name, **options})


def test_every_optimiser_comes_back_from_its_dump():
    reader = TypeAdapter(OptimizerSpec)
    specs = [kind() for kind in PLAIN.values()]
    specs += [kind(**options, optimizer=Nadam(beta1=0.8)) for kind, options in WRAPPERS.values()]
    for spec in specs:
        assert reader.validate_python(spec.model_dump()) == spec
        assert reader.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        ("adma", r'^unknown optimizer "adma" in agent\.json at optimizer\.type; did you mean "adam"\?'),
        ({"type": "adam", "beta": 0.9}, r'^unknown field "beta" in agent\.json at optimizer.*did you mean "beta'),
        ({"type": "adam", "beta1": 1.5}, r"^wrong value 1\.5 in agent\.json at optimizer\.beta1; it must be less than"),
        ({"type": "adam", "epsilon": 0}, r"at optimizer\.epsilon; it must be more than 0"),
        ({}, r'^missing field "type" in agent\.json at optimizer'),
        ({"type": ["adam"]}, r"in agent\.json at optimizer"),
        (
            {"type": "clipped_step", "clipping_value": 0, "optimizer": "adam"},
            r"at optimizer\.clipping_value; it must be more than 0",
        ),
        (
            {"type": "subsampling_step", "fraction": 1.5, "optimizer": "adam"},
            r"optimizer\.fraction; it must be at most 1",
        ),
        ({"type": "optimized_step", "ls_parameter": 1.0, "optimizer": "adam"}, r"ls_parameter; it must be less than 1"),
        ({"type": "multi_step", "num_steps": 0, "optimizer": "adam"}, r"num_steps; it must be at least 1"),
        (
            {"type": "multi_step", "optimizer": {"type": "clipped_step", "clipping_value": 1.0, "optimizer": "adma"}},
            r'unknown optimizer "adma" in agent\.json at optimizer\.optimizer\.optimizer\.type; did you mean "adam"',
        ),
    ],
)
def test_mistakes_are_named_with_their_place_and_the_nearest_word(optimizer, sentence):
    with pytest.raises(SpecError, match=sentence):
        read(optimizer)


@pytest.mark.parametrize(
    ("word", "way_out"),
    [
        ("synchronization", "use target_sync_frequency and target_update_weight instead"),
        ("global_optimizer", "use run_mode instead"),
    ],
)
def test_old_optimisers_that_mean_something_else_here_are_explained(word, way_out):
    for written in (word, {"type": word}, {"type": "multi_step", "optimizer": {"type": word}}):
        with pytest.raises(SpecError, match=f'"{word}" is no optimiser here: .*{way_out}'):
            read_agent({"type": "ppo", "optimizer": written})

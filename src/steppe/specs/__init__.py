"""Typed models of the spec files, without imports of NumPy, JAX or gymnasium."""

from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import EvaluationSpec, ExperimentSpec, dump, valid_name
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.loading.files import find_config, find_project, read_spec_file
from steppe.specs.loading.validation import unknown_word, validate
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.frequency import Frequency

__all__ = [
    "AgentSpec",
    "ClusterSpec",
    "EnvironmentSpec",
    "EvaluationSpec",
    "ExperimentSpec",
    "Frequency",
    "NetworkSpec",
    "dump",
    "find_config",
    "find_project",
    "read_spec_file",
    "unknown_word",
    "valid_name",
    "validate",
]

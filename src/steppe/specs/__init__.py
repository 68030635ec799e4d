"""The typed words of the spec files; light to import: neither NumPy nor JAX nor gymnasium."""

from steppe.specs.agent import AgentSpec
from steppe.specs.cluster import ClusterSpec
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import EvaluationSpec, ExperimentSpec, dump, load_experiment, valid_name
from steppe.specs.files import find_config, find_project, read_spec_file
from steppe.specs.frequency import Frequency
from steppe.specs.network import NetworkSpec
from steppe.specs.validation import unknown_word, validate

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
    "load_experiment",
    "read_spec_file",
    "unknown_word",
    "valid_name",
    "validate",
]

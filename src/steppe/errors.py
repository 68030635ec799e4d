"""Steppe's exceptions. Each message is one sentence: the problem, its place, and the fix.

They are raised where the mistake is found; only the edge of the CLI turns them into text and an exit code.
"""

from __future__ import annotations


class SteppeError(Exception):
    """An error whose message is for users; `exit_code` is the exit code of the command."""

    exit_code = 1


class UserError(SteppeError):
    """The user can fix this by changing the input."""

    exit_code = 2


class SpecError(UserError):
    """A spec file or a setting is wrong: names the file and the path inside it."""


class MissingExtra(UserError):
    """An optional package is needed: names the `pip install` to run."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional package; run: pip install "steppe[{extra}]"')


class MissingEnvironment(UserError):
    """The package of an environment is not installed here; workers elsewhere may have it."""


class MissingEnvironmentExtra(MissingExtra, MissingEnvironment):
    """The missing package of an environment comes with an extra of Steppe."""


class EnvironmentAway(UserError):
    """The server of an environment cannot be reached."""


class ModuleNotAllowed(UserError):
    """A file or a message names a Python module that the caller did not allow."""


class ProjectError(UserError):
    """No project here, or it cannot be used."""


class StateError(UserError):
    """The experiment's state does not allow the request."""


class OwnedError(StateError):
    """Another process owns the experiment at the moment; it may work later."""


class CheckpointError(SteppeError):
    """No checkpoint could be read."""


class EnvironmentFault(SteppeError):
    """The user's environment raised, or returned something that cannot be learned from."""


class CallbackFault(SteppeError):
    """The caller's `on_progress` raised."""


class StopTraining(Exception):
    """Raised by the caller's `on_progress` to stop a run, which saves a checkpoint first; its text is the reason."""


class TrainingDiverged(SteppeError):
    """A loss or a parameter became NaN or infinite."""


class ClusterError(SteppeError):
    """A cluster cannot be made, reached or used."""


class StorageError(SteppeError):
    """The disk is full, read-only or gone."""


def reason_of(error: OSError) -> str:
    """The system's message as a clause: `connection refused`."""
    text = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
    return str(text).replace("_", " ").lower()


def clause(said: object) -> str:
    """A text as a clause of a sentence: one line, no full stop; for an error without a message its class name."""
    text = str(said) or (type(said).__name__ if isinstance(said, BaseException) else "")
    return " ".join(text.split()).rstrip(".")

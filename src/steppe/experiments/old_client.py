"""Takes over projects and experiments that the old tfcli made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from steppe.errors import ProjectError
from steppe.experiments.project import EXPERIMENTS, Project
from steppe.experiments.run_folder.status import read_object
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.durable import storing, write_atomically
from steppe.files.run_files import SPEC_FILE
from steppe.specs.loading import limited_reading
from steppe.specs.loading.files import OLD_PROJECT_FILE, PROJECT_FILE, SUFFIXES, read_project
from steppe.tensorforce import client_files

OLD_SPEC_FILE = "experiment.tfcli.json"
"""The old tfcli's experiment.json keeps this name once the experiment is started here."""
KINDS = ("agents", "clusters", "environments", "experiments", "networks")
"""The folders in configs/ that the old client had too."""


def is_old_project(root: Path) -> bool:
    """Whether a folder is a project of the old client that has no steppe.json yet."""
    return (root / OLD_PROJECT_FILE).is_file() and not (root / PROJECT_FILE).exists()


def take_over(root: Path, name: str | None, remote_id: str | None, service_account_key: str | None) -> list[str]:
    """Writes steppe.json for a project of the old client, and no other file; returns clauses on its contents."""
    root = Path(root).absolute()
    about = read_project(root)
    if not isinstance(about, dict):
        raise ProjectError(
            f"{root / OLD_PROJECT_FILE} does not describe a project; make a new one: steppe init --force"
        )
    about = {"name": root.name, "remote_id": None, "schema_version": 1} | about
    given = {"name": name, "remote_id": remote_id, "service_account_key": service_account_key}
    about |= {key: value for key, value in given.items() if value is not None}
    found = [f'its name, "{about["name"]}"']
    if about["remote_id"] is not None:
        found.append(f"its cloud project, {about['remote_id']}")
    for folder in sorted((root / "configs").glob("*/")):
        files = [path for path in folder.iterdir() if path.suffix in SUFFIXES]
        if files and folder.name in KINDS:
            found.append(f"{_counted(len(files), 'file')} in configs/{folder.name}/")
    if experiments := Project(root).store.folders():
        found.append(f"{_counted(len(experiments), 'experiment')}: {', '.join(each.name for each in experiments)}")
    with storing(root):
        (root / EXPERIMENTS).mkdir(exist_ok=True)
    write_atomically(root / PROJECT_FILE, json.dumps(about, indent=2) + "\n")
    return found


def made(folder: RunFolder) -> bool:
    """Whether the old tfcli made the experiment, and nothing has been started in it since."""
    return client_files.is_old(read_object(folder.path / SPEC_FILE))


def keep_spec(folder: RunFolder) -> None:
    """Keeps the old experiment.json under another name; only for the holder of the folder's lock."""
    path = folder.path / OLD_SPEC_FILE
    if not limited_reading.exists(path):
        with storing(path):
            shutil.copy2(folder.path / SPEC_FILE, path)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

import json
from pathlib import Path

import pytest


class Project:
    """A project folder that is also the current folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("steppe.json", {"name": "demo"})

    def write(self, path: str, content: object) -> Path:
        """Text as it is, anything else as JSON."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
        return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)

"""Links between the pages work, and the pages name all that they promise to name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_pages_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", ["docs/decisions.md", "docs/benchmarks.md", "benchmarks/README.md"])
def test_modules_that_the_page_names_exist(page: str) -> None:
    names = set(re.findall(r"`([\w./]+/\w+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    folders = (ROOT, ROOT / "src" / "steppe", ROOT / "benchmarks")
    assert {name for name in names if not any((folder / name).exists() for folder in folders)} == set()


def test_every_page_of_the_docs_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def test_the_quick_start_names_every_folder_that_remains_after_uninstalling(monkeypatch: pytest.MonkeyPatch) -> None:
    from steppe.clusters import registry
    from steppe.net.local_tokens import tokens_folder
    from steppe.runners.compilation import cache_folder

    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "STEPPE_CACHE", registry.FOLDER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    text = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    for folder in (cache_folder(), registry.folder(), tokens_folder()):
        assert f"`~/{folder.parent.relative_to('/home/someone')}`" in text


def test_the_quick_start_and_the_classifiers_name_the_same_python_versions() -> None:
    text = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    first, last = re.findall(r"\(3\.(\d+) to 3\.(\d+) were tried\)", text)[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each for each in project["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert named == [f"Programming Language :: Python :: 3.{minor}" for minor in range(int(first), int(last) + 1)]

"""CONTRIBUTING.md and the list of examples name what is there, and all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
TOP = {path.name for path in ROOT.iterdir()}
EXAMPLES = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")}


def paths(text: str) -> list[str]:
    """What looks like a path from the checkout's root, in code spans and links."""
    spans = [word for span in re.findall(r"`([^`]+)`", text) for word in span.split()]
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    return sorted({one for one in [*spans, *links] if one and one.split("/")[0] in TOP})


@pytest.mark.parametrize("path", paths(PAGE))
def test_every_path_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_has_its_row() -> None:
    table = PAGE.partition("## Where what runs")[2].partition("## Tests")[0]
    packages = {
        f"src/everflow/{path.parent.name}/"
        for path in (ROOT / "src" / "everflow").glob("*/__init__.py")
    }
    rows = set(re.findall(r"src/everflow/\w+/", table))
    assert packages - rows == set()


def test_every_folder_of_tests_has_its_row() -> None:
    folders = {
        f"tests/{path.name}/"
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.rglob("test_*.py"))
    }
    assert {folder for folder in folders if f"| `{folder}` |" not in PAGE} == set()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "examples/README.md"])
def test_the_readme_leads_there(name: str) -> None:
    assert f"]({name})" in (ROOT / "README.md").read_text()


def test_every_example_is_listed_and_run_by_a_test() -> None:
    assert (
        set(
            re.findall(
                r"^\| \[([^\]]+)\]", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE
            )
        )
        == EXAMPLES
    )
    tests = "\n".join(
        path.read_text()
        for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "examples").glob("test_*.py")]
        if path != Path(__file__)
    )
    unused = {
        name
        for name in EXAMPLES
        if not name.startswith("test_") and not re.search(rf"\b{name.partition('.')[0]}\b", tests)
    }
    assert unused == set()

"""The architecture page names files and functions; each of them has to exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
REFERENCE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.py)(?::([A-Za-z_.]+))?`")
REFERENCES = sorted(set(REFERENCE.findall(PAGE.read_text())))


def test_the_page_names_every_hop() -> None:
    assert len(REFERENCES) > 20


@pytest.mark.parametrize(("file", "name"), REFERENCES, ids=[":".join(found) for found in REFERENCES])
def test_named_file_and_function_exist(file: str, name: str) -> None:
    path = ROOT / file if file.startswith("tests/") else ROOT / "src" / "everflow" / file
    assert path.is_file(), f"{file} does not exist; mend {PAGE.name}"
    if not name:
        return
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{file} has no {name}; mend {PAGE.name}"
        body = getattr(found[0], "body", [])

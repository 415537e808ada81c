"""docs/SCALING.md says what the code does: its settings with their defaults, its
example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everflow import StreamsConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SCALING.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(title: str) -> list[list[str]]:
    rows = [
        line.strip("| ").split(" | ")
        for line in section(title).splitlines()
        if line.startswith("| `")
    ]
    assert rows
    return rows


@pytest.mark.parametrize("row", first_cells("Settings"), ids=lambda row: row[0])
def test_settings_exist_with_the_defaults_named(row: list[str]) -> None:
    key, default = row[0].strip("`"), row[1]
    if key == "client.tag.NAME":
        assert StreamsConfig(
            **{"application.id": "a", "bootstrap.servers": "b:1", "client.tag.NAME": "x"}
        ).tags() == {"NAME": "x"}
        return
    fields = StreamsConfig.__dataclass_fields__
    assert key.replace(".", "_") in fields
    if default.startswith("("):
        assert fields[key.replace(".", "_")].default in ("", None)
    else:
        assert str(fields[key.replace(".", "_")].default) == default


def test_the_example_is_the_one_that_is_tested() -> None:
    (code,) = re.findall(r"```python\n(    def assign.*?)```", PAGE, re.DOTALL)
    assert code in (ROOT / "examples" / "own_assignor.py").read_text()

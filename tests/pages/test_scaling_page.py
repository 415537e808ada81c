"""docs/SCALING.md says what the code does: its settings with their defaults, its log lines, its
example, its module paths."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from everflow import StreamsConfig
from everflow.logs import LOGGER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SCALING.md").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
PLACE = r".{1,40}?"  # %d, %s or an f-string's field


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


def log_lines() -> list[str]:
    """The first column, and of rebalances asked for also the reasons in the second."""
    quoted = [
        cell for row in first_cells("Logs") for cell in (row if "Asking for" in row[0] else row[:1])
    ]
    return [line for cell in quoted for line in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("line", log_lines())
def test_log_lines_are_those_of_the_code(line: str) -> None:
    pattern = PLACE.join(re.escape(part) for part in line.removesuffix("…").split("…"))
    assert re.search(pattern, SOURCE), f"no module logs {line!r} any more"


def test_the_example_is_the_one_that_is_tested() -> None:
    (code,) = re.findall(r"```python\n(    def assign.*?)```", PAGE, re.DOTALL)
    assert code in (ROOT / "examples" / "own_assignor.py").read_text()


NAMES = sorted({*re.findall(r"`(everflow(?:\.[a-z_]+)+)(\.[A-Z]\w+)?`", PAGE)} - {(LOGGER, "")})


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_modules_and_names_exist(module: str, name: str) -> None:
    found = importlib.import_module(module)
    assert not name or hasattr(found, name[1:])

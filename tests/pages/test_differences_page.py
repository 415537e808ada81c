"""Each row of `docs/differences.md` has a reason and a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "differences.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
DIFFERENCES = {row[0]: row for row in ROWS if row[0] not in ("what", "---")}
TESTS = [*(ROOT / "tests").rglob("test_*.py"), *ROOT.glob("*/tests/test_*.py")]
NAMES = {path.name for path in TESTS} | {
    name for path in TESTS for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_has_a_reason_and_a_test(what: str) -> None:
    row = DIFFERENCES[what]
    assert len(row) == 5
    assert "" not in [cell.strip() for cell in row]
    named = [Path(name).name for name in re.findall(r"`([\w/.]+)`", row[4])]
    assert row[4] == "the same" or {*named} & NAMES, "no test that is there"
    assert [name for name in named if name.startswith("test_") and name not in NAMES] == []

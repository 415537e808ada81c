"""docs/STOPPING.md and its tests have the same rows: signals, lines and exit codes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "STOPPING.md").read_text()
CELLS = [
    line.strip("| ").split(" | ")
    for line in PAGE.splitlines()
    if re.match(r"\| `[a-z-]+` \|", line)
]
NAMES = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}


@pytest.fixture(scope="module")
def tested() -> object:
    from integration.stopping import test_stopping

    return test_stopping


def test_the_page_and_the_tests_have_the_same_rows(tested: object) -> None:
    rows = [cells[0].strip("`") for cells in CELLS]
    assert len(rows) == len(set(rows))
    assert set(rows) == {*tested.ROWS, *tested.ROWS_OF_THEIR_OWN}  # type: ignore[attr-defined]


@pytest.mark.parametrize("cells", CELLS, ids=lambda cells: cells[0])
def test_a_row_says_what_its_test_looks_for(cells: list[str], tested: object) -> None:
    row = tested.ROWS.get(cells[0].strip("`"))  # type: ignore[attr-defined]
    if row is None:
        return
    sent, line, exit_code = cells[2], cells[3], cells[5]
    assert re.findall("SIG[A-Z]+", sent)[0] == NAMES[row.signals[0]]
    assert int(re.findall(r"\d+", exit_code)[-1]) == row.code
    if line.startswith("`"):
        wanted = row.lines[0].format(NAMES[row.signals[0]])
        assert line.strip("`").split("…")[0].split("`")[0].startswith(wanted.rstrip())

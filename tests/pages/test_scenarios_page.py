"""`docs/SCENARIOS.md` names tests that exist, for every scenario that has to have one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from chaos.rounds.schedule import FaultKind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SCENARIOS.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
REQUIRED = set(range(1, 42))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=str)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    defined = {
        node.name
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert name in defined


def test_every_scenario_of_the_main_job_has_a_row_with_a_test() -> None:
    rows = {
        int(number): tests
        for number, tests in re.findall(r"^\| (\d+) \|(?:[^|]+\|){2}(.*)\|$", PAGE, re.MULTILINE)
    }
    assert {number for number in REQUIRED if "::" not in rows.get(number, "")} == set()


def test_every_scenario_says_by_which_faults_it_is_met_under_load() -> None:
    rows = dict(re.findall(r"^\| (\d+) \|[^|]+\|([^|]+)\|.*\|$", PAGE, re.MULTILINE))
    assert {int(number) for number in rows} == REQUIRED
    kinds = {kind.value for kind in FaultKind} | {"elastic"}
    for number, told in rows.items():
        named = set(re.findall(r"`([^`]+)`", told))
        nameless = told.startswith((" no: ", " all kinds: ", " each run: "))
        assert named <= kinds, f"scenario {number}:{told}"
        assert bool(named) != nameless, f"scenario {number}:{told}"


def test_every_published_anomaly_has_a_row_with_a_test() -> None:
    rows = dict(re.findall(r"^\| (A\d+) \|(?:[^|]+\|){3}(.*)\|$", PAGE, re.MULTILINE))
    assert list(rows) == [f"A{number}" for number in range(1, 16)]
    assert [name for name, tests in rows.items() if "::" not in tests] == []

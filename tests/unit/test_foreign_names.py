"""Whoever writes a name of Kafka Streams' Java API or of PySpark is told what it is called here. Reads as its user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everflow
from everflow import KafkaStreams, SessionWindows, TimeWindows, TopologyError, agg, serdes
from everflow.errors import UnknownImportError, UnknownNameError
from everflow.foreign_names import FOREIGN_NAMES

MODULES = {"everflow": everflow, "serdes": serdes, "agg": agg}


def _is_there(owner: str, name: str) -> bool:
    from everflow.dsl.branched import BranchedKStream
    from everflow.testing import topology_test_driver

    here = {**vars(topology_test_driver), "BranchedKStream": BranchedKStream}
    found = MODULES.get(owner) or here.get(owner) or getattr(everflow, owner)
    return hasattr(found, name) or name in ("config", "error", *getattr(found, "__dataclass_fields__", ()))


@pytest.mark.parametrize("owner", FOREIGN_NAMES)
def test_an_entry_leads_to_a_name_that_is_there(owner: str) -> None:
    for name, entry in FOREIGN_NAMES[owner].items():
        assert entry.here is None or _is_there(owner, entry.here), name
        if _is_there(owner, name):
            assert entry.here == name, f"{name} is there, so nobody is told: the table must agree"


def test_the_java_names_of_a_module_are_told_where_they_are_imported() -> None:
    with pytest.raises(UnknownImportError, match="everflow has no Materialized: what it carries are keywords") as caught:
        from everflow import Materialized  # noqa: F401
    assert isinstance(caught.value, ImportError | TopologyError)
    assert caught.value.code == "EF-UNKNOWN-NAME"
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
    with pytest.raises(ImportError, match=r"did you mean StreamsBuilder\?"):
        from everflow import StreamBuilder  # noqa: F401


def _of(thing: Any) -> Any:
    """As a program without a type checker sees it: the names here are wrong on purpose."""
    return thing


def test_the_java_names_of_a_module_are_told_where_they_are_used() -> None:
    with pytest.raises(UnknownNameError, match="joins are not there yet"):
        everflow.JoinWindows  # noqa: B018
    with pytest.raises(UnknownNameError, match=r"serdes has no String: it is string here, for example serdes\.string\(\)"):
        _of(serdes).String()
    with pytest.raises(UnknownNameError, match="agg has no collect_list: it is not among the built-ins yet"):
        _of(agg).collect_list("value.item")
    with pytest.raises(UnknownNameError, match=r"agg has no average: it is avg here"):
        _of(agg).average("value.amount")


def test_the_java_names_of_windows_are_told_on_the_class_and_on_its_objects() -> None:
    with pytest.raises(UnknownNameError, match=r"TimeWindows\.of_size_with_no_grace\('1 hour'\)"):
        _of(TimeWindows).ofSizeWithNoGrace("1 hour")
    with pytest.raises(UnknownNameError, match=r"it is advance_by here"):
        _of(TimeWindows.of_size("1 hour")).advanceBy("1 minute")
    with pytest.raises(UnknownNameError, match=r"it is of_inactivity_gap here"):
        getattr(SessionWindows, "with")
    with pytest.raises(UnknownNameError, match=r"everflow\.ClientState"):
        _of(KafkaStreams).State  # noqa: B018


def test_submodules_are_imported_as_ever_and_asking_for_a_name_breaks_nothing() -> None:
    from everflow import testing, windows

    assert isinstance(testing.EmbeddedBroker, type)
    assert isinstance(windows.TimeWindows, type)
    assert not hasattr(everflow, "Materialized")
    assert not hasattr(TimeWindows, "ofSizeAndGrace")
    assert getattr(TimeWindows.of_size(1), "until", None) is None


def test_an_uncaught_error_reads_as_one_message_without_a_guess_of_pythons(tmp_path: Path) -> None:
    program = tmp_path / "orders.py"
    program.write_text("from everflow import TimeWindows\nTimeWindows.of_size('1 hour').gracePeriodMs\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    told = done.stderr.splitlines()
    assert told[-2].endswith(
        "TimeWindows has no gracePeriodMs: it is grace_ms here, for example TimeWindows.of_size('1 hour').grace_ms"
    )
    assert told[-1] == f"  at {program}:2"

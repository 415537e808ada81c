"""The guards that chaos runs do without are where the mutations look for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.rounds.mutations import MUTATIONS, _put

ROOT = Path(__file__).resolve().parents[2]


def test_every_guard_is_there_to_be_taken_away() -> None:
    """In a process of its own: it has none of them afterwards."""
    taken = "from chaos.rounds.mutations import MUTATIONS\nfor take in MUTATIONS.values(): take()"
    ended = subprocess.run(
        [sys.executable, "-c", taken], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert len(MUTATIONS) == 5
    assert ended.returncode == 0, ended.stderr


def test_a_guard_of_another_name_is_heard() -> None:
    guard = SimpleNamespace(checked=1)
    _put(guard, checked=2)
    assert guard.checked == 2
    with pytest.raises(AttributeError, match="renamed"):
        _put(guard, renamed=2)

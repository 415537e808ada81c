"""The data source ``everflow-state`` where its program does not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from everflow.config import StreamsConfig
from everflow.errors import TopologyError
from everflow.snapshots import state_source

CONFIG = StreamsConfig(application_id="shop", bootstrap_servers="b:1")


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, loader: str) -> str:
    """What the error says where ``loader`` stands for the loader's code."""
    (folder / "some_loader.py").write_text(loader)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(state_source, "LOADER", "some_loader")
    with pytest.raises(TopologyError, match=r"shop:builder.*loaded") as caught:
        state_source._loaded("shop:builder", CONFIG)
    assert caught.value.code == "EF-PROGRAM"
    return str(caught.value)


def test_a_program_that_does_not_end_is_ended_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(state_source, "LOAD_TIMEOUT_S", 0.5)
    said = load(monkeypatch, tmp_path, "while True:\n    pass\n")
    assert "after 0.5 s its process was still busy" in said
    assert "if __name__ == '__main__':" in said


def test_what_a_program_says_and_how_it_ends_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "exit code 3" in load(monkeypatch, tmp_path, "raise SystemExit(3)\n")
    assert "no such topic" in load(monkeypatch, tmp_path, "raise SystemExit('no such topic')\n")

"""`everflow run`: what becomes of the membership when it is stopped, from the option to
`KafkaStreams.run`."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from everflow.cli import run as run_module
from everflow.cli.app import app
from everflow.instance.client_state import ClientState


@pytest.mark.parametrize(
    ("option", "leaves"), [([], None), (["--leave"], True), (["--stay"], False)]
)
def test_leave_and_stay_say_what_becomes_of_the_membership(
    option: list[str], leaves: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def run_program(target: str, settings: object, **options: Any) -> int:
        given.append((target, options["leave_group"]))
        return 0

    monkeypatch.setattr(run_module, "run_program", run_program)
    done = CliRunner().invoke(
        app,
        ["run", "program:builder", "--application-id", "a", "--bootstrap-servers", "b:1", *option],
    )
    assert done.exit_code == 0, done.output
    assert given == [("program:builder", leaves)]


@pytest.mark.parametrize(
    ("took_s", "state", "pause_s"),
    [
        (0.002, ClientState.RUNNING, 1.0),
        (0.02, ClientState.RUNNING, 6.0),
        (0.5, ClientState.RUNNING, 30.0),
        (0.5, ClientState.REBALANCING, 10.0),
    ],
)
def test_a_sample_that_takes_long_is_taken_less_often(
    took_s: float, state: ClientState, pause_s: float
) -> None:
    """Of 1,000 partitions it takes a tenth of a second of a core; who waits for a start is told
    more often."""
    assert run_module.pause_s(took_s, state) == pause_s

"""A signal is never lost and never lands in a block that must not be cut."""

from __future__ import annotations

import os
import signal

import pytest

from everflow.demo.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_raises_at_once_outside_and_behind_a_held_block(number: int) -> None:
    before = signal.getsignal(number)
    reached: list[str] = []

    def hold(interrupts: Interrupts, name: str, signalled: bool) -> None:
        with interrupts.held():
            if signalled:
                os.kill(os.getpid(), number)
            reached.append(name)

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            hold(interrupts, "end of the block", signalled=True)
        hold(interrupts, "no signal, no interrupt", signalled=False)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)  # Python handles a signal to itself before it goes on
    assert reached == ["end of the block", "no signal, no interrupt"]
    assert signal.getsignal(number) is before

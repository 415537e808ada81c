"""Code of the user's own: what it raises is seen, and it is not waited for for ever."""

from __future__ import annotations

import threading

import pytest

from everflow.membership.own_assignor import OwnCode, OwnCodeError, patience_s
from everflow.testing.waiting import wait_until


def test_it_runs_on_a_daemon_thread_of_its_own_and_what_it_raises_is_raised() -> None:
    seen: list[threading.Thread] = []
    code = OwnCode(10.0)
    code.run("Plug", lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon
    with pytest.raises(KeyError, match="a bug"):
        code.run("Plug", lambda: {}["a bug"])  # type: ignore[index]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_its_thread_in_silence_is_an_error(failure: BaseException) -> None:
    def ends() -> None:
        raise failure

    with pytest.raises(OwnCodeError, match=f"Plug raised {type(failure).__name__}"):
        OwnCode(10.0).run("Plug", ends)


def test_one_that_hangs_is_left_alone_and_not_entered_again_before_it_came_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, go_on, entered = OwnCode(0.05), threading.Event(), []

    def hangs() -> None:
        entered.append(1)
        go_on.wait(60)

    with pytest.raises(OwnCodeError, match=r"answered.*0\.05"):
        code.run("Plug", hangs)
    with pytest.raises(OwnCodeError, match="asked"):
        code.run("Plug", hangs)
    assert entered == [1]
    go_on.set()
    wait_until(lambda: "came back after" in caplog.text, 10, "the late answer is logged")
    code.run("Plug", lambda: entered.append(2))
    assert entered == [1, 2]


def test_whoever_waits_is_told_so_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def said() -> None:
        wait_until(
            lambda: (
                "Plug has not answered for 1 s, and the whole group waits for it" in caplog.text
            ),
            10,
            "it is said",
        )
        go_on.set()

    waiter = threading.Thread(target=said)
    waiter.start()
    OwnCode(30.0).run("Plug", lambda: go_on.wait(20))
    waiter.join(20)
    assert go_on.is_set()


def test_a_member_that_waits_for_it_is_not_thrown_out() -> None:
    assert patience_s(45_000, 30_000) == 10
    assert patience_s(6_000, 300_000) == 2

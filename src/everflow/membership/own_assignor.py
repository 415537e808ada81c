"""Loads the assignor that ``task.assignor.class`` names (KIP-924), or everflow's own."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.api import decide_with
from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.errors import ConfigError, EverflowError

log = logging.getLogger("everflow.membership")

SAY_AFTER_S = 1.0
SHARE = 3
"""The share of the time-outs that the user's code may take: no heartbeats are sent meanwhile."""


class OwnCodeError(EverflowError):
    """The user's code ended its thread, or has not answered in time."""

    code = "EF-OWN-CODE"


class OwnCode:
    """Runs calls of one plug-in, one at a time; used by one thread. A call that has not come back
    is left alone on its daemon thread, and further ones are refused until it has."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._answer: Future[None] | None = None
        self._began_s = 0.0

    def run(self, name: str, call: Callable[[], object]) -> None:
        """``call()``; raises what it raises. OwnCodeError for no Exception, or too late."""
        if self._answer is not None and not self._answer.done():
            raise OwnCodeError(
                f"{name} has not answered for {time.monotonic() - self._began_s:.0f} s, it is not "
                f"asked again before it has"
            )
        answer, began_s = Future[None](), time.monotonic()
        self._answer, self._began_s = answer, began_s
        threading.Thread(
            target=_answer, args=(call, answer), name=f"everflow-own-{name}", daemon=True
        ).start()
        say_after_s = min(SAY_AFTER_S, self._limit_s)
        if not wait([answer], say_after_s).done:
            log.warning(
                "%s has not answered for %g s, and the whole group waits for it; after %g s "
                "everyone keeps what it has",
                name,
                say_after_s,
                self._limit_s,
            )
        if not wait([answer], self._limit_s - say_after_s).done:
            answer.add_done_callback(
                lambda _: log.warning(
                    "%s came back after %.1f s: too late, it will be asked again",
                    name,
                    time.monotonic() - began_s,
                )
            )
            raise OwnCodeError(f"{name} has not answered within {self._limit_s:g} s")
        failure = answer.exception()
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            raise OwnCodeError(f"{name} raised {failure!r}") from failure


def _answer(call: Callable[[], object], answer: Future[None]) -> None:
    try:
        call()
    except BaseException as failure:  # its thread is its own: not even SystemExit may go unseen
        answer.set_exception(failure)
    else:
        answer.set_result(None)


def patience_s(session_timeout_ms: float, rebalance_timeout_ms: float) -> float:
    return min(session_timeout_ms, rebalance_timeout_ms) / SHARE / 1000


KEY = "task.assignor.class"


def decision(path: str, patience_s: float = 10.0) -> Callable[[ClusterState], Assignment]:
    """``path``: ``module:Class`` or, as in Java, ``module.Class``; empty: everflow's own assignor.
    ConfigError: no such class, it cannot be made without arguments, or it is no assignor."""
    if not path:
        return everflow_assignor.assign
    found = _loaded(path)
    try:
        made = found() if isinstance(found, type) else found
    except Exception as failure:
        raise ConfigError(
            f"{KEY}: {path} could not be made without arguments: {failure!r}"
        ) from failure
    _require_methods(path, made)
    return decide_with(made, OwnCode(patience_s).run)  # type: ignore[arg-type]


def check_assignor(path: str) -> None:
    """ConfigError if there is no such class or it is no assignor; it is not made yet."""
    if path:
        _require_methods(path, _loaded(path))


def _loaded(path: str) -> object:
    module_name, separator, name = path.partition(":")
    if not separator:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise ConfigError(
            f"{KEY} = {path!r} cannot be loaded: it names no class in a module. Write module:Class."
        )
    try:
        found: object = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as failure:
        raise ConfigError(
            f"{KEY} = {path!r} cannot be loaded: {failure}. Write module:Class."
        ) from failure
    except Exception as failure:
        raise ConfigError(
            f"{KEY} = {path!r}: its module fails when it is imported: {failure!r}"
        ) from failure
    return found


def _require_methods(path: str, assignor: object) -> None:
    missing = [
        method
        for method in ("assign", "on_assignment_computed")
        if not callable(getattr(assignor, method, None))
    ]
    if missing:
        raise ConfigError(
            f"{KEY}: {path} has no {' and no '.join(missing)}; see "
            f"everflow.assignment.api.TaskAssignor."
        )

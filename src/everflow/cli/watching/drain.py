"""``everflow drain``: an instance hands its tasks over, leaves its group and ends.

As the pre-stop hook of a pod it first asks whether the pod goes for good: at a scale-in it does, in
a rolling restart it comes back, and then nothing must move (KIP-345). Kubernetes itself tells a pod
the same in both cases.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from everflow.cli.watching.kubernetes import goes_for_good, read_stateful_set
from everflow.client.direct import asked, no_answer, refused_with, timed_out
from everflow.console.observed import url_of
from everflow.errors import ConfigError, EverflowError, FatalError, RetriableError
from everflow.logs import counted
from everflow.observe.page.verdict import duration

ASK_S = 10.0
LOOK_EVERY_S = 0.25
DONE, FAILED = "NOT_RUNNING", ("PENDING_ERROR", "ERROR")


def returns(stateful_set: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this pod comes back. Where that cannot be found out, it does: a static member that
    does not return loses its tasks after ``session.timeout.ms``, which is slower and safe."""
    try:
        return not goes_for_good(
            environment["HOSTNAME"], read_stateful_set(stateful_set, environment)
        )
    except (EverflowError, KeyError, ValueError):
        return True


def drain(address: str, timeout_s: float, told: Callable[[str], object] = lambda _: None) -> int:
    """Tell the instance, and wait until it has ended; ``told`` gets how far it is, some times a
    second. How many active tasks it had when it was seen last.

    RetriableError where none answers, or it takes longer; FatalError where it ends with an error;
    ConfigError where it does not do it, with the reason.
    """
    url = url_of(address)
    _tell(url, address)
    began, left = time.monotonic(), 0
    while (passed_s := time.monotonic() - began) < timeout_s:
        status = _status(url, timeout_s - passed_s)
        if status is None or status.get("state") == DONE:
            return left
        left = _active(status) if status else left
        if status.get("state") in FAILED:
            raise FatalError(f"the instance at {address} ended with an error: {status['error']}")
        told(f"{progress(status)}, {duration(passed_s)}")
        time.sleep(LOOK_EVERY_S)
    raise RetriableError(
        f"the instance at {address} still runs after {timeout_s:g} s; it goes on with its end."
    )


def progress(status: Mapping[str, Any]) -> str:
    """What a drain waits for, of a status; of one that has none, that it has none. Pure."""
    if not status:
        return "waiting for its answer"
    if left := _active(status):
        return f"handing over: {counted(left, 'active task')} still here"
    return "handed over: it leaves the group and ends"


def _active(status: Mapping[str, Any]) -> int:
    return sum(task["role"] == "active" for task in status["tasks"])


def _tell(url: str, address: str) -> None:
    try:
        asked(urllib.request.Request(f"{url}/drain", method="POST"), ASK_S)
    except urllib.error.HTTPError as error:
        raise ConfigError(
            f"what answered at {address} does not drain: {refused_with(error)} ({error.code}). Is "
            f"it an instance's http.listen? Name it by an address of this host, such as 127.0.0.1: "
            f"nobody else may make it drain."
        ) from None
    except OSError as error:
        raise RetriableError(
            f"no instance of this host answered at {address} ({no_answer(error)}). Does it run, "
            f"with http.listen set to this address?"
        ) from None


def _status(url: str, left_s: float) -> dict[str, Any] | None:
    """Empty while it is too busy to answer; None: nobody is there any more."""
    try:
        return dict(json.loads(asked(f"{url}/status", max(0.1, min(ASK_S, left_s)))))
    except urllib.error.HTTPError:
        return {}
    except (OSError, ValueError) as error:
        return {} if isinstance(error, ValueError) or timed_out(error) else None

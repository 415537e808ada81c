"""``everflow drain``: an instance hands its tasks over, leaves its group and ends.

As the pre-stop hook of a pod it first asks whether the pod goes for good: at a scale-in it does, in
a rolling restart it comes back, and then nothing must move (KIP-345). Kubernetes itself tells a pod
the same in both cases.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from everflow.cli.watching.kubernetes import goes_for_good, read_stateful_set
from everflow.errors import EverflowError, RetriableError

ASK_S = 10.0
LOOK_EVERY_S = 0.5


def returns(stateful_set: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this pod comes back. Where that cannot be found out, it does: a static member that
    does not return loses its tasks after ``session.timeout.ms``, which is slower and safe."""
    try:
        return not goes_for_good(
            environment["HOSTNAME"], read_stateful_set(stateful_set, environment)
        )
    except (EverflowError, KeyError, ValueError):
        return True


def drain(address: str, timeout_s: float) -> None:
    """Tell the instance, and wait until it has ended. RetriableError where none answers, or it
    takes longer."""
    try:
        asked = urllib.request.Request(f"http://{address}/drain", method="POST")
        with urllib.request.urlopen(asked, timeout=ASK_S):
            pass
    except (OSError, urllib.error.URLError) as error:
        raise RetriableError(
            f"no instance of this host answered at {address} ({error}). Does it run, with "
            f"http.listen set to this address?"
        ) from None
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{address}/live", timeout=ASK_S):
                pass
        except OSError:  # 503, or nobody there: it has ended
            return
        time.sleep(LOOK_EVERY_S)
    raise RetriableError(f"the instance at {address} still runs after {timeout_s:g} s.")

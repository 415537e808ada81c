"""``everflow drain`` and ``rack``: an instance leaves its group; what a pod asks Kubernetes.

As the pre-stop hook of a pod it first asks whether the pod goes for good: at a scale-in it does, in
a rolling restart it comes back, and then nothing must move (KIP-345). Kubernetes itself tells a pod
the same in both cases.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everflow.client.direct import asked, no_answer, refused_with, timed_out
from everflow.console.observed import url_of
from everflow.errors import ConfigError, EverflowError, FatalError, RetriableError
from everflow.logs import counted
from everflow.observe.page.verdict import duration

ASK_S = 10.0
LOOK_EVERY_S = 0.25
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DONE, FAILED = "NOT_RUNNING", ("PENDING_ERROR", "ERROR")


def returns(stateful_set: str, environment: Mapping[str, str] = os.environ) -> bool:
    """True if this pod comes back, or if that cannot be found out. A static member that does not
    return loses its tasks after ``session.timeout.ms``, which is slower and safe."""
    try:
        return not goes_for_good(
            environment["HOSTNAME"], read_stateful_set(stateful_set, environment)
        )
    except (EverflowError, KeyError, ValueError):
        return True


def drain(address: str, timeout_s: float, report: Callable[[str], object] = lambda _: None) -> int:
    """Tell the instance, and wait until it has ended; ``report`` gets how far it is, some times a
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
        report(f"{progress(status)}, {duration(passed_s)}")
        time.sleep(LOOK_EVERY_S)
    raise RetriableError(
        f"the instance at {address} still runs after {timeout_s:g} s; it goes on stopping."
    )


def progress(status: Mapping[str, Any]) -> str:
    """The text for a drain's status, which is empty while the instance does not answer. Pure."""
    if not status:
        return "waiting for an answer"
    if left := _active(status):
        return f"migrating tasks: {counted(left, 'active task')} left"
    return "all tasks migrated: the instance leaves the group and ends"


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
    """The instance's status; empty while it is too busy to answer, None if it has ended."""
    try:
        return dict(json.loads(asked(f"{url}/status", max(0.1, min(ASK_S, left_s)))))
    except urllib.error.HTTPError:
        return {}
    except (OSError, ValueError) as error:
        return {} if isinstance(error, ValueError) or timed_out(error) else None


def goes_for_good(pod: str, stateful_set: Mapping[str, Any] | None) -> bool:
    """True if no pod of this name will come back: the set is gone or being deleted, or has fewer
    replicas than this pod's ordinal needs. Pure. ValueError for a name without an ordinal."""
    if stateful_set is None or stateful_set["metadata"].get("deletionTimestamp"):
        return True
    first = stateful_set["spec"].get("ordinals", {}).get("start", 0)
    ordinals = int(first) + int(stateful_set["spec"].get("replicas", 1))
    return int(pod.rpartition("-")[2]) >= ordinals


def read_stateful_set(name: str, environment: Mapping[str, str], account: Path = ACCOUNT) -> Any:
    """A StatefulSet of this namespace, from the API server; None if there is none. RetriableError
    without an answer or a permission."""
    try:
        space = (account / "namespace").read_text().strip()
    except OSError as error:
        raise RetriableError(f"this is no pod: {error}.") from None
    return _read(f"/apis/apps/v1/namespaces/{space}/statefulsets/{name}", environment, account)


def write_rack(
    node: str, label: str, folder: Path, environment: Mapping[str, str], account: Path = ACCOUNT
) -> str:
    """Write settings for where a node stands: ``client.rack`` and ``client.tag.zone``, a file each;
    the rack. FatalError where the node has no such label; RetriableError as `read_stateful_set`."""
    found = _read(f"/api/v1/nodes/{node}", environment, account)
    rack = ((found or {}).get("metadata", {}).get("labels") or {}).get(label)
    if not rack:
        raise FatalError(
            f"node {node} has no label {label}: name the label that says where your nodes stand "
            f"(rack.topologyKey), or leave racks out (rack.enabled=false)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for key in ("client.rack", "client.tag.zone"):
        (folder / key).write_text(rack)
    return str(rack)


def _read(path: str, environment: Mapping[str, str], account: Path) -> Any:
    try:
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        token = (account / "token").read_text().strip()
        host = f"[{host}]" if ":" in host else host
        request = urllib.request.Request(
            f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
        return json.loads(asked(request, ASK_S, tls=trusted))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise RetriableError(f"{path} cannot be read: HTTP {error.code}.") from None
    except KeyError as error:
        raise RetriableError(f"this is no pod: {error} is not set.") from None
    except (OSError, ValueError) as error:
        raise RetriableError(f"{path} cannot be read: {error}.") from None

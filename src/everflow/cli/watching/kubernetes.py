"""What a pod asks Kubernetes' API server: its StatefulSet, and the labels of its node."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everflow.client.direct import asked
from everflow.errors import FatalError, RetriableError

ASK_S = 10.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def goes_for_good(pod: str, stateful_set: Mapping[str, Any] | None) -> bool:
    """Whether no pod of this name will come back: the set is gone or being deleted, or has fewer
    replicas than this pod's ordinal asks for. Pure. ValueError for a name without an ordinal."""
    if stateful_set is None or stateful_set["metadata"].get("deletionTimestamp"):
        return True
    first = stateful_set["spec"].get("ordinals", {}).get("start", 0)
    ordinals = int(first) + int(stateful_set["spec"].get("replicas", 1))
    return int(pod.rpartition("-")[2]) >= ordinals


def read_stateful_set(name: str, environment: Mapping[str, str], account: Path = ACCOUNT) -> Any:
    """What the API server says of a StatefulSet of this namespace; None: there is none.
    RetriableError without an answer, or without the permission to ask."""
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

"""Commands that watch and scale instances (docs/guide/metrics.md, kubernetes.md, fleet.md).

As the pre-stop hook of a pod ``drain`` first asks whether the pod goes for good: at a scale-in it
does, in a rolling restart it comes back, and then nothing must move (KIP-345). Kubernetes itself
tells a pod the same in both cases.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from everflow.cli.commands import (
    Cluster,
    Form,
    InstanceSettings,
    Output,
    TargetAsForRun,
    assignments,
    command,
    own_status,
    require_not_gone,
    show,
    table,
)
from everflow.errors import ConfigError, EverflowError, FatalError, RetriableError
from everflow.fleet.decision import require_not_own
from everflow.logs import counted, time_of_day
from everflow.retry import shown_by
from everflow.stop_signals import owned

if TYPE_CHECKING:
    from everflow.client.direct import RefusedError
    from everflow.config import StreamsConfig
    from everflow.fleet.command import Fleet
    from everflow.kafka.admin import ClusterAdmin

ASK_S = 20.0
_NUMBERS = ("committed", "end", "lag")
_OWN_OF_AUTOSCALE = {
    "group.instance.id": "instances come and go, and no two may have the same",
    "state.dir": "--folder says where each has its own",
    "http.listen": "each has an address of its own, which is said when it starts",
}

Addresses = Annotated[
    list[str],
    typer.Argument(metavar="HOST:PORT...", help="http.listen of the instances."),
]


@command()
def status(addresses: Addresses, output: Form = Output.text) -> int:
    """Show state, readiness, lag, tasks and load of instances. Exit code 1 if one does not answer,
    is not ready, or has no answer from its brokers."""
    found = ask(addresses)
    show(output, found, status_lines(found))
    return 0 if all(map(is_well, found)) else 1


@command()
def tasks(addresses: Addresses, output: Form = Output.text) -> int:
    """List the tasks of instances: failing tasks first, then tasks in another state than RUNNING,
    then the largest lags. Exit code 1 if an instance does not answer."""
    found = ask(addresses)
    rows, silent = task_rows(found), [one for one in found if not answered(one)]
    show(output, [*rows, *silent], [*tasks_table(rows), *warnings(found)])
    return 1 if silent else 0


@command()
def lag(
    application_id: Annotated[
        str, typer.Argument(metavar="APPLICATION_ID", help="application.id: the group.")
    ],
    cluster: Cluster,
    output: Form = Output.text,
) -> None:
    """List the lag of an application by partition, largest first. It asks the brokers, so no
    instance needs to run. The lag is a difference of offsets: it counts the markers of
    transactions, too, one for each transaction and partition."""
    with cluster.connected() as (config, admin, _):
        rows = lag_rows(config, admin, application_id)
    show(output, rows, lag_table(rows))


@command()
def drain(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="http.listen of an instance on this host.")
    ],
    stateful_set: Annotated[
        str | None,
        "For the pre-stop hook of a pod of this StatefulSet: drain only if the pod will "
        "not come back.",
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until it ends.")] = 120,
) -> None:
    """Stop an instance on this host: it migrates its tasks to other instances, leaves the group
    (also as a static member) and ends."""
    if stateful_set is not None and returns(stateful_set):
        typer.echo("the pod comes back, so its tasks wait for it")
        return
    with own_status() as status:
        left = drained(address, timeout, status.show)
    if left:
        typer.echo(
            f"the instance has left; {counted(left, 'active task')} had not been migrated at the "
            f"last status; its log says more"
        )
    else:
        typer.echo("the instance has migrated its tasks and left")


@command()
def rack(
    node: Annotated[str, "The pod's node."],
    folder: Annotated[Path, "Folder for client.rack and client.tag.zone."],
    label: Annotated[str, "The node label with the rack or zone."] = "topology.kubernetes.io/zone",
) -> None:
    """Write the rack or zone of a pod's node as settings, for run --settings-folder."""
    typer.echo(f"{node} is in {write_rack(node, label, folder, os.environ)}")


@command()
def autoscale(
    target: TargetAsForRun,
    settings: InstanceSettings,
    least: Annotated[int, typer.Option("--min", min=1, help="Minimum number of instances.")] = 1,
    most: Annotated[int, typer.Option("--max", min=1, help="Maximum number of instances.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="num.stream.threads of each instance.")] = 1,
    folder: Annotated[
        Path | None, "Folder for state and logs. Default: ./everflow-APPLICATION_ID."
    ] = None,
) -> None:
    """Run as many instances on this machine as their load requires. Ctrl-C stops all of them."""
    from everflow.autoscale import Autoscaler

    if most < least:
        raise ConfigError(f"--max {most} is below --min {least}.")
    merged, application_id = settings.merged(), settings.application_id
    require_not_own(merged, _OWN_OF_AUTOSCALE, "everflow autoscale")
    checked(target, merged)
    scaler = Autoscaler(
        target=target,
        options=[
            *("--application-id", application_id, "--bootstrap-servers", settings.servers),
            *("--threads", str(threads), "--leave"),
            *(part for one in settings.settings or [] for part in ("--set", one)),
            *(f"--settings-folder={one.absolute()}" for one in settings.settings_folder or []),
        ],
        folder=folder or Path(f"everflow-{application_id}"),
        least=least,
        most=most,
        say=lambda line: typer.echo(f"{time_of_day()} {line}"),
    )
    stop = threading.Event()
    with owned() as signals, signals.reported_to(lambda *_: stop.set()):
        scaler.run(stop)


def lag_rows(
    config: StreamsConfig, admin: ClusterAdmin, application_id: str
) -> list[dict[str, Any]]:
    """Topic, partition, committed, end and lag, worst first. FatalError: nothing was committed;
    ApplicationMigratedError; RetriableError."""
    from everflow.protocol.messages import COPIED, mark_in

    found = admin.committed(application_id, None, ASK_S, stable=False)
    require_not_gone(application_id, found, "everflow lag {}")
    marks = {tp: mark_in(one.metadata) for tp, one in found.items()}
    # Without a migration's positions in the changelogs that it has copied.
    committed = {
        tp: found[tp].offset for tp, mark in marks.items() if mark is None or mark.kind != COPIED
    }
    if not committed:
        raise FatalError(
            f"group {application_id} has committed nothing at {config.bootstrap_servers}. Is this "
            f"its application.id, and has it processed a record?"
        )
    ends = admin.list_offsets(list(committed), "latest", "read_committed")
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": offset,
            "end": ends[tp],
            "lag": max(0, ends[tp] - offset),
        }
        for tp, offset in committed.items()
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["topic"], row["partition"]))


def lag_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [
        (row["topic"], str(row["partition"]), *(f"{row[name]:,}" for name in _NUMBERS))
        for row in rows
    ]
    total = sum(row["lag"] for row in rows)
    head = ("topic", "partition", *_NUMBERS)
    return [*table([head, *cells]), f"together {total:,} records behind"]


def checked(target: str, settings: Mapping[str, object]) -> StreamsConfig:
    """The configuration of instances that are started elsewhere. ConfigError, TopologyError: none
    could run with it."""
    from everflow.cli.program import module_and_name, put_current_folder_on_path, require_name
    from everflow.config import StreamsConfig
    from everflow.kafka.client_settings import check_clients

    put_current_folder_on_path()
    require_name(*module_and_name(target))
    config = StreamsConfig(**settings)
    check_clients(config)
    return config


ANSWER_S = 10.0
MOST_ASKED = 32
"""At a time."""


def url_of(address: str) -> str:
    """Where an instance is watched: a URL, no slash at its end. ConfigError for no address."""
    whole = address.startswith(("http://", "https://"))
    url = (address if whole else f"http://{address}").rstrip("/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, half of the brackets around an IPv6 address
        raise _no_address(
            address, "its port is no number up to 65535, or its host is none"
        ) from None
    if not host:
        raise _no_address(address, "it names no host")
    if port is None and not whole:  # a URL has the port of its scheme
        raise _no_address(address, "it names no port")
    return url


def _no_address(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"{address!r} is no address of an instance: {why}. Write HOST:PORT, as http.listen has it, "
        f"such as 127.0.0.1:9464, or a URL."
    )


def nobody_at(url: str, error: OSError) -> RetriableError:
    from everflow.client.direct import no_answer

    if isinstance(error, TimeoutError):
        return RetriableError(
            f"no instance answered at {url} in time. Its process stands still or hangs, its host "
            f"is overloaded, or no network leads there."
        )
    return RetriableError(
        f"no instance answered at {url} ({no_answer(error)}). Does it run, with http.listen set to "
        f"this address? It says where it is watched when it starts."
    )


def status_at(address: str) -> dict[str, Any]:
    """The JSON of an instance. RetriableError: none answers; ConfigError: no address, or not where
    an instance is watched."""
    from everflow.client.direct import BrokenAnswerError, RefusedError, asked

    url = url_of(address)
    try:
        found = json.loads(asked(f"{url}/status", ANSWER_S))
    except RefusedError as error:
        raise _not_watched(url, error) from None
    except (BrokenAnswerError, ValueError):
        found = None
    except OSError as error:
        raise nobody_at(url, error) from None
    if not isinstance(found, dict) or "state" not in found:
        raise RetriableError(f"what answered at {url} is no everflow instance.")
    return {"address": address, **found}


def _not_watched(url: str, error: RefusedError) -> EverflowError:
    code = error.status
    if code == 421:
        return ConfigError(f"{url}: {error}")
    if code == 401:
        return ConfigError(
            f"what answered at {url} asks for a token ({code}), which no instance does where it is "
            f"watched. Is it its query.listen? Name its http.listen: it says both when it starts."
        )
    return RetriableError(
        f"what answered at {url} does not say how an instance does: it answers {code}. Is this its "
        f"http.listen?"
    )


def ask(addresses: Iterable[str]) -> list[dict[str, Any]]:
    """What each says, in their order: its status, or ``address``, ``code`` and ``error`` of one
    that did not answer (`answered`). ConfigError: no address. If none answers, the first error."""
    every = list(addresses)
    for address in every:
        url_of(address)
    # Beside each other: one that hangs takes `ANSWER_S`, and so do ten.
    with ThreadPoolExecutor(MOST_ASKED) as asking:
        answers = list(asking.map(_answer, every))
    errors = [error for _, error in answers if error is not None]
    if errors and len(errors) == len(answers):
        raise errors[0]
    return [found for found, _ in answers]


def _answer(address: str) -> tuple[dict[str, Any], EverflowError | None]:
    try:
        return status_at(address), None
    except EverflowError as error:
        return {"address": address, "code": error.code, "error": str(error)}, error


def answered(status: Mapping[str, Any]) -> bool:
    return "state" in status


def is_well(status: Mapping[str, Any]) -> bool:
    return answered(status) and status["ready"]["ok"] and not _brokers_away(status)


def _brokers_away(status: Mapping[str, Any]) -> str:
    from everflow.observe.page.view import brokers_away

    said = brokers_away(status.get("silent_s", 0.0))
    return said[:1].lower() + said[1:]


def status_lines(statuses: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        _status_line(status) if answered(status) else _error_line(status) for status in statuses
    ]


def _error_line(status: Mapping[str, Any]) -> str:
    return f"{status['address']} · {status['error'].splitlines()[0]}"


def _status_line(status: Mapping[str, Any]) -> str:
    tasks = status["tasks"]
    roles: dict[str, int] = {}
    for task in tasks:
        roles[task["role"]] = roles.get(task["role"], 0) + 1
    busy = [thread["busy"] for thread in status["threads"]]
    # An older instance says neither which program it runs nor why it is in its state.
    reason = status.get("state_reason")
    unready = "not ready" if reason else f"not ready ({status['ready']['why']})"
    ready = "ready" if status["ready"]["ok"] else unready
    lag = "lag unknown" if status["lag"] is None else f"lag {status['lag']:,}"
    parts = [
        status["address"],
        status["application_id"],
        status["state"] + (f" ({reason})" if reason else ""),
        ready,
        *([away] if (away := _brokers_away(status)) else ()),
        lag,
        ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "no tasks",
    ]
    if busy:
        parts.append(f"busy {sum(busy) / len(busy):.0%}")
    if status["members"] is not None:
        parts.append(f"{counted(status['members'], 'instance')} in the group")
    if status["desired_instances"] is not None:
        parts.append(f"{status['desired_instances']} desired")
    parts.append(f"everflow {status['version']}")
    parts += [f"topology {text}"] if (text := status.get("topology")) else []
    parts += [text] if (text := status.get("program")) else []
    if status["error"]:
        parts.append(status["error"].splitlines()[0])
    return " · ".join(parts)


def task_rows(statuses: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All tasks of the instances that answered: first those in trouble, then the largest lags."""
    rows = [
        {"address": status["address"], **task}
        for status in statuses
        if answered(status)
        for task in status["tasks"]
    ]
    return sorted(
        rows,
        key=lambda row: (not row["trouble"], row["state"] == "RUNNING", -(row["lag"] or 0)),
    )


def tasks_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("task", "role", "state", "lag", "rate", "left", "disk", "instance", "trouble")
    return table([head, *(_task_cells(row) for row in rows)])


def warnings(statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for status in statuses:
        if not answered(status):
            lines.append(_error_line(status))
        elif away := _brokers_away(status):
            lines.append(f"{status['address']} · {away}: lags are as they were then")
    return lines


def _task_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    size, rate = sum(store["bytes"] for store in row["stores"]), row["rate"]
    return (
        row["task"],
        row["role"],
        "PAUSED" if row.get("paused") else row["state"],  # an older instance says nothing of it
        "?" if row["lag"] is None else f"{row['lag']:,}",
        f"{rate:,.{int(rate < 10)}f}/s" if rate else "",
        f"{row['remaining_s']:.0f} s" if row["remaining_s"] else "",
        f"{size / (1 << 20):,.1f} MB" if size else "",
        row["address"],
        row["trouble"],
    )


POLL_EVERY_S = 0.25
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DONE, FAILED = "NOT_RUNNING", ("PENDING_ERROR", "ERROR")


def returns(stateful_set: str, environment: Mapping[str, str] = os.environ) -> bool:
    """True if this pod comes back, or if that is unknown: its tasks then wait, slower but safe."""
    try:
        return not goes_for_good(
            environment["HOSTNAME"], read_stateful_set(stateful_set, environment)
        )
    except (EverflowError, KeyError, ValueError):
        return True


def drained(
    address: str, timeout_s: float, report: Callable[[str], object] = lambda _: None
) -> int:
    """Tell the instance, and wait until it has ended; ``report`` gets how far it is, some times a
    second. How many active tasks it had when it was seen last.

    RetriableError: none answers, or it takes longer; FatalError: it ends with an error;
    ConfigError: it refuses.
    """
    from everflow.observe.page.view import duration

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
        time.sleep(POLL_EVERY_S)
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
    from everflow.client.direct import RefusedError, asked, no_answer

    try:
        asked(f"{url}/drain", ANSWER_S, post=b"")
    except RefusedError as error:
        raise ConfigError(
            f"what answered at {address} does not drain: {error} ({error.status}). Is "
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
    from everflow.client.direct import RefusedError, asked

    try:
        return dict(json.loads(asked(f"{url}/status", max(0.1, min(ANSWER_S, left_s)))))
    except RefusedError:
        return {}
    except (OSError, ValueError) as error:
        return {} if isinstance(error, ValueError | TimeoutError) else None


def goes_for_good(pod: str, stateful_set: Mapping[str, Any] | None) -> bool:
    """True if no pod of this name will come back. Pure. ValueError: a name without an ordinal."""
    if stateful_set is None or stateful_set["metadata"].get("deletionTimestamp"):
        return True
    first = stateful_set["spec"].get("ordinals", {}).get("start", 0)
    ordinals = int(first) + int(stateful_set["spec"].get("replicas", 1))
    return int(pod.rpartition("-")[2]) >= ordinals


def read_stateful_set(
    name: str,
    environment: Mapping[str, str],
    account: Path = ACCOUNT,
) -> Any:
    """A StatefulSet of this namespace, if there is one. RetriableError: no answer or no right."""
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
    from everflow.client.direct import RefusedError, asked

    try:
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        token = (account / "token").read_text().strip()
        host = f"[{host}]" if ":" in host else host
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        url = f"https://{host}:{port}{path}"
        return json.loads(asked(url, ANSWER_S, headers=headers, tls=trusted))
    except RefusedError as error:
        if error.status == 404:
            return None
        raise RetriableError(f"{path} cannot be read: HTTP {error.status}.") from None
    except KeyError as error:
        raise RetriableError(f"this is no pod: {error} is not set.") from None
    except (OSError, ValueError) as error:
        raise RetriableError(f"{path} cannot be read: {error}.") from None


Most = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="Scale with the load, up to this number. Default: --instances."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Options as `everflow.fleet.command.Fleet` has them."""

    master: Annotated[
        str | None, "The Spark cluster, e.g. spark://host:7077; default: spark-submit's."
    ] = None
    cores: Annotated[int, typer.Option(min=1, help="Cores of each executor.")] = 1
    memory: Annotated[
        str,
        "Memory of each executor (spark.executor.memory). The processes of an instance need "
        "memory in addition.",
    ] = "512m"
    folder: Annotated[
        str,
        "Folder on the hosts for state and logs. Variables of the executors' environment "
        "are expanded.",
    ] = "~/.local/state/everflow-fleet"


@command()
def fleet(
    target: TargetAsForRun,
    settings: InstanceSettings,
    places: Places,
    instances: Annotated[
        int, typer.Option(min=1, help="Number of instances; with --max the minimum.")
    ] = 1,
    most: Most = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="num.stream.threads of each instance; default: --cores."),
    ] = None,
    files: Annotated[
        list[Path] | None, "Another file or folder that the program needs; repeatable."
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address at which the hosts reach the driver. Default: its host, a free port.",
            show_default=False,
        ),
    ] = "",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
    ] = None,
) -> None:
    """Run instances in a Spark cluster, one per executor; Spark replaces a lost executor. Ctrl-C
    stops all instances; they stay members of the group for a restart."""
    from everflow.fleet.command import run_fleet

    made = planned(
        target,
        settings.merged(),
        least=instances,
        most=most,
        threads=threads or places.cores,
        files=files or [],
        listen=listen,
        conf=assignments("--conf", conf),
        **vars(places),
    )
    with shown_by(own_status().waiting), owned() as signals:
        run_fleet(made, lambda line: typer.echo(f"{time_of_day()} {line}"), signals)


@command()
def scale(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Address that the fleet on this host printed."),
    ],
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="New number of instances. Default: only show them."),
    ] = None,
    most: Most = None,
    output: Form = Output.text,
) -> None:
    """Resize a fleet, or show its instances."""
    found = asked_of(address, instances, most)
    show(output, found, fleet_lines(found))


def planned(
    target: str, settings: Mapping[str, object], *, least: int, most: int | None, **more: Any
) -> Fleet:
    """The fleet that is asked for. ConfigError, TopologyError: what no instance could run with."""
    from everflow.cli.program import module_and_name
    from everflow.fleet.command import Fleet

    if most is not None and most < least:
        raise ConfigError(f"--max {most} is below --instances {least}.")
    require_not_own(settings)
    config = checked(target, settings)
    return Fleet(
        target=":".join(module_and_name(target)),  # on the hosts the file lies in the first folder
        application_id=config.application_id,
        settings=settings,
        least=least,
        most=least if most is None else most,
        **more,
    )


def asked_of(address: str, instances: int | None, most: int | None) -> dict[str, Any]:
    """A fleet's status, after it was resized if ``instances`` is given. RetriableError: no answer;
    ConfigError: it refuses."""
    from everflow.client.direct import RefusedError, asked

    if instances is None and most is not None:
        raise ConfigError("--max needs --instances")
    sizes = None if instances is None else {"instances": instances, "max": most}
    data = None if sizes is None else json.dumps(sizes).encode()
    path = "fleet" if data is None else "scale"
    try:
        found: dict[str, Any] = json.loads(asked(f"http://{address}/{path}", ANSWER_S, post=data))
        return found
    except RefusedError as error:
        raise ConfigError(f"the fleet at {address} refused: {error}") from None
    except (OSError, ValueError) as error:
        raise RetriableError(
            f"no fleet answered at {address} ({error}). Does it run on this host? It says its "
            f"address when it starts."
        ) from None


def fleet_lines(found: Mapping[str, Any]) -> list[str]:
    bounds = str(found["instances"])
    if found["max"] != found["instances"]:
        bounds += f" to {found['max']}"
    head = ["instance", "host", "state", "lag", "log"]
    rows = [[str(one["slot"]), *_cells(one)] for one in found["slots"]]
    return [f"{found['application_id']}: {bounds} instances", *table([head, *rows])]


def _cells(slot: Mapping[str, Any]) -> list[str]:
    if slot["without_place_s"] or "host" not in slot:
        return ["-", f"no executor for {slot['without_place_s']:g} s", "-", "-"]
    state = slot["state"] or "starts"
    if slot["state"] == "RUNNING" and not slot["ready"]:
        state += ", not ready"
    lag = "-" if slot["lag"] is None else f"{slot['lag']:,}"
    return [slot["host"], state, lag, slot["log"]]

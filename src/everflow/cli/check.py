"""``everflow check``: what a change of a program needs, before it runs (note 067)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.commands import (
    EXIT_FAILED,
    Cluster,
    Form,
    Output,
    command,
    echo,
    own_status,
)
from everflow.errors import ConfigError, TopologyError

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.admin import ClusterAdmin
    from everflow.topology.program import Topology
    from everflow.topology.program_facts import ProgramFacts

_READ = "from everflow.cli.check import print_facts; print_facts()"
_BEGIN = "everflow program "
"""Begins the line with a program's facts: a program may print while it is imported."""
_ASK_S = 20.0
_LOADING_S = 2.0

Programs = Annotated[
    list[str],
    typer.Argument(
        metavar="PROGRAM...",
        help="OLD and NEW, or NEW and --application-id; each as for run: MODULE:NAME or "
        "FILE.py:NAME.",
    ),
]


@command()
def check(
    programs: Programs,
    cluster: Cluster,
    application_id: Annotated[
        str | None,
        "Compare with this application, running or stopped, in the place of OLD.",
    ] = None,
    output: Form = Output.text,
) -> int:
    """Compare two programs before an upgrade: same, safe by a rolling bounce, needs a migration, or
    needs a reset, with the reason for each store, topic and node. Exit code 1 for the last two.
    With --application-id the old program is what the brokers know of the application; without it no
    broker is asked. Each program is loaded in a process of its own.
    """
    from everflow.topology.compatibility import Effect, changes, effect_of, report, report_json

    if len(programs) != (2 if application_id is None else 1):
        raise ConfigError(
            "everflow check takes two programs, OLD and NEW, e.g. released/app.py:builder "
            "app.py:builder; or NEW and --application-id",
            code="EF-USAGE",
        )
    if application_id is None:
        with (
            own_status() as status,
            status.waiting(f"loading {' and '.join(programs)}", after_s=_LOADING_S),
        ):
            old, new = _loaded(programs)
    else:
        with cluster.connected() as (config, admin, status):
            topics = {name: shape.partitions for name, shape in admin.list_topics().items()}
            old, before = facts_of_group(application_id, topics, config, admin)
            with status.waiting(f"loading {programs[0]}", after_s=_LOADING_S):
                (new,) = _loaded(
                    programs,
                    {
                        "application_id": application_id,
                        "topics": topics,
                        "before": before,
                        "optimization": config.optimization,
                    },
                )
        if not old.stores_known:
            echo(_little_known(application_id, old), err=True)
    found = changes(old, new)
    echo((report_json if output is Output.json else report)(found).rstrip())
    return EXIT_FAILED if effect_of(found) >= Effect.MIGRATION else 0


def facts_of_group(
    application_id: str, topics: Mapping[str, int], config: StreamsConfig, admin: ClusterAdmin
) -> tuple[ProgramFacts, dict[str, int]]:
    """What the brokers know of an application, and how many partitions of its inputs it has read.
    ConfigError: nothing; RetriableError."""
    from everflow.cli.cluster_reset import leftovers
    from everflow.protocol.messages import COPIED, mark_in, of_kafka_streams, parse_metadata
    from everflow.topology.grown_topics import read_before
    from everflow.topology.known_programs import facts_of_application
    from everflow.topology.store_layouts import from_json

    found = admin.committed(application_id, None, _ASK_S, stable=False)
    marks = {tp: mark_in(one.metadata) for tp, one in found.items()}
    # Without a migration's positions in the changelogs that it has copied.
    committed = {tp: found[tp] for tp, mark in marks.items() if mark is None or mark.kind != COPIED}
    if not committed:
        raise ConfigError(
            f"group {application_id} has committed nothing at {config.bootstrap_servers}, so no "
            f"program has run under this application.id: all of the new one is new, and there is "
            f"nothing to compare it with. Is --application-id spelled as the application's?",
            code="EF-USAGE",
        )
    inputs = {tp.topic for tp in committed}
    own = leftovers(application_id, topics, (), admin.groups(_ASK_S))
    internal = {one.topic for one in own if not one.group}
    facts = facts_of_application(
        application_id,
        {tp: from_json(parse_metadata(one.metadata).layouts) for tp, one in committed.items()},
        {name: count for name, count in topics.items() if name in inputs | internal},
        java=any(of_kafka_streams(one.metadata) for one in committed.values()),
    )
    return facts, read_before(committed)


def _little_known(application_id: str, facts: ProgramFacts) -> str:
    why = (
        f"{application_id} was run by Kafka Streams (Java), which keeps no types beside its offsets"
        if facts.java
        else f"No types are kept beside the offsets of {application_id}: no record was processed "
        f"yet, or an earlier release or another client committed them"
    )
    return (
        f"{why}. Compared are input topics, stores and repartition topics by their names, and "
        f"numbers of partitions."
    )


def _loaded(targets: list[str], cluster: Mapping[str, object] | None = None) -> list[ProgramFacts]:
    """The facts of programs, each loaded in its own process: two versions have modules of one name.
    ``cluster``: as `facts_on_cluster`. TopologyError with what the process says where one cannot be
    loaded, or not run there."""
    from everflow.topology.program_facts import from_json

    given = None if cluster is None else json.dumps(cluster)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _READ, target],
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in targets
    ]
    answers = [process.communicate(given) for process in processes]
    found = []
    for target, process, (out, err) in zip(targets, processes, answers, strict=True):
        lines = [line for line in out.splitlines() if line.startswith(_BEGIN)]
        if process.returncode or not lines:
            raise TopologyError(
                f"{target} cannot be {'loaded' if cluster is None else 'compared'} (exit code "
                f"{process.returncode}):\n{err.strip()}",
                code="EF-PROGRAM",
            )
        found.append(from_json(lines[-1].removeprefix(_BEGIN)))
    return found


def print_facts() -> None:
    """The process of one program: prints its facts, as they are on the cluster of its input."""
    from everflow.cli.commands import errors_for_people
    from everflow.cli.program import load_topology
    from everflow.spark.session import get_context
    from everflow.topology.program_facts import facts_of, to_json
    from everflow.topology.subtopologies import cut

    try:
        with errors_for_people(False):
            cluster = json.loads(sys.stdin.read() or "null")
            topology = load_topology(sys.argv[1], start_spark=get_context)
            facts = (
                facts_of(cut(topology))
                if cluster is None
                else facts_on_cluster(topology, **cluster)
            )
            text = to_json(facts)
    except typer.Exit as failed:
        sys.exit(failed.exit_code)
    print(f"{_BEGIN}{text}", flush=True)


def facts_on_cluster(
    topology: Topology,
    *,
    application_id: str,
    topics: Mapping[str, int],
    optimization: str,
    before: Mapping[str, int] = MappingProxyType({}),
) -> ProgramFacts:
    """The facts with the partitions that the program needs, as a start finds them. ``topics``:
    partitions by topic; ``before``: how many of an input were read. TopologyError as a start's."""
    from everflow.operators.optimization import optimized
    from everflow.topology.grown_topics import misfits
    from everflow.topology.patterns import with_topics
    from everflow.topology.program_facts import facts_of
    from everflow.topology.subtopologies import cut, fixed_tasks, internal_names, internal_topics

    subs = cut(with_topics(optimized(topology, optimization), topics, application_id))
    counts = {name: topics[name] for name in subs.topics if name in topics}
    names = internal_names(subs, application_id)
    existing = {name: topics[name] for name in names if name in topics}
    needed = internal_topics(subs, counts, application_id, existing=existing)
    inputs = {topic for sub in subs.subtopologies for topic in sub.source_topics}
    partitions = {name: count for name, count in counts.items() if name in inputs}
    for name, (count, _) in (*needed.repartition.items(), *needed.changelog.items()):
        partitions[name.removeprefix(f"{application_id}-")] = count
    fixed = fixed_tasks(subs, existing, application_id)
    return facts_of(subs, partitions, misfits(subs, counts, fixed, before))

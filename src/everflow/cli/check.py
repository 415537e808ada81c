"""``everflow check``: what a change of a program needs, before it runs (note 067)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

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
from everflow.errors import ApplicationMigratedError, ConfigError

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.console.status import StatusLine
    from everflow.kafka.admin import ClusterAdmin
    from everflow.topology.program import Topology
    from everflow.topology.program_facts import ProgramFacts

_ASK_S = 20.0

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
    needs a reset, with the reason for each store, topic and node; and which output topics and sinks
    get the same results as before. Exit code 1 if it needs a migration or a reset.
    With --application-id the old program is what the brokers know of the application; without it no
    broker is asked. Each program is loaded in a process of its own.
    """
    from everflow.topology.compatibility import (
        Effect,
        changes,
        effect_of,
        report,
        report_json,
        results,
    )

    if len(programs) != (2 if application_id is None else 1):
        raise ConfigError(
            "everflow check takes two programs, OLD and NEW, e.g. released/app.py:builder "
            "app.py:builder; or NEW and --application-id",
            code="EF-USAGE",
        )
    if application_id is None:
        with own_status() as status:
            old, new = _facts([(program, None) for program in programs], status)
    else:
        with cluster.connected() as (config, admin, status):
            topics = {name: shape.partitions for name, shape in admin.list_topics().items()}
            old, before = facts_of_group(application_id, topics, config, admin)
            given = {
                "application_id": application_id,
                "topics": topics,
                "before": before,
                "optimization": config.optimization,
            }
            (new,) = _facts([(programs[0], given)], status)
        if not old.stores_known:
            echo(_little_known(application_id, old), err=True)
    found = changes(old, new)
    told = report_json if output is Output.json else report
    echo(told(found, results(old, new, found)).rstrip())
    return EXIT_FAILED if effect_of(found) >= Effect.MIGRATION else 0


def facts_of_group(
    application_id: str, topics: Mapping[str, int], config: StreamsConfig, admin: ClusterAdmin
) -> tuple[ProgramFacts, dict[str, int]]:
    """What the brokers know of an application, and how many partitions of its inputs it has read.
    ConfigError: nothing; ApplicationMigratedError; RetriableError."""
    from everflow.cli.cluster_reset import leftovers
    from everflow.protocol.messages import (
        COPIED,
        gone_to,
        mark_in,
        of_kafka_streams,
        parse_metadata,
    )
    from everflow.topology.grown_topics import read_before
    from everflow.topology.known_programs import facts_of_application
    from everflow.topology.store_layouts import from_json

    found = admin.committed(application_id, None, _ASK_S, stable=False)
    marks = {tp: mark_in(one.metadata) for tp, one in found.items()}
    if to := gone_to(one.metadata for one in found.values()):
        raise ApplicationMigratedError(
            f"Application {application_id} was migrated to {to}, and no program starts under its "
            f"application.id any more. Compare with the one that goes on: --application-id {to}",
            to=to,
        )
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


def _facts(
    asked: Sequence[tuple[str, Mapping[str, object] | None]], status: StatusLine
) -> list[ProgramFacts]:
    from everflow.cli.program_processes import read
    from everflow.topology.program_facts import from_json

    return [from_json(text.decode()) for text in read(f"{__name__}:facts_text", asked, status)]


def facts_text(topology: Topology, cluster: Mapping[str, Any] | None) -> bytes:
    """A program's facts, as they are on the cluster (`facts_on_cluster`) where there is one."""
    from everflow.topology.program_facts import facts_of, to_json
    from everflow.topology.subtopologies import cut

    facts = facts_of(cut(topology)) if cluster is None else facts_on_cluster(topology, **cluster)
    return to_json(facts).encode()


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

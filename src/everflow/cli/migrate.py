"""``everflow migrate``: carries an application into another one, online (note 067)."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    Cluster,
    Form,
    Output,
    assignments,
    command,
    connected,
    echo,
    named_as_typed,
    option_settings,
    own_status,
    require_yes,
    show,
)
from everflow.errors import (
    ConfigError,
    MigrationError,
    RetriableError,
    TopologyError,
    UnknownOutcomeError,
)
from everflow.stop_signals import StopRequestedError

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.admin import ClusterAdmin
    from everflow.migration.migrator import Migrator
    from everflow.migration.plan import Asked
    from everflow.migration.programs import Program
    from everflow.records import CommittedOffset, TopicPartition

_WRITE = "from everflow.cli.migrate import write_program; write_program()"
_LOADING_S = 2.0
_BACK_S = 60.0

OldId = Annotated[str, typer.Argument(metavar="OLD_ID", help="application.id of the old version.")]
OldProgram = Annotated[
    str,
    typer.Option("--from", metavar="OLD_PROGRAM", help="The program of OLD_ID, as it runs now."),
]
NewProgram = Annotated[
    str, typer.Argument(metavar="NEW_PROGRAM", help="As for run: MODULE:NAME or FILE.py:NAME.")
]


@dataclass(frozen=True)
class Carrying:
    """How stores are carried that do not say it themselves."""

    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW",
            help="A store that has another name now (OLD=: it is left); repeatable.",
        ),
    ] = None
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STORE=MODULE:FUNCTION",
            help="Converts the values of a store of the new program: it gets the old value, and "
            "returns the new one, or None to leave the entry out; repeatable.",
        ),
    ] = None
    shorten: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STORE",
            help="A store may lose what its shorter retention does not keep; repeatable.",
        ),
    ] = None

    def functions(self) -> dict[str, Callable[[Any], Any]]:
        """By store of the new program. TopologyError, ConfigError."""
        return {
            name: _function(name, to) for name, to in assignments("--values", self.values).items()
        }

    def asked(self) -> Asked:
        from everflow.migration.plan import Asked

        return Asked(
            renames=assignments("--rename", self.rename),
            functions=frozenset(assignments("--values", self.values)),
            shorter=tuple(self.shorten or ()),
        )


@command()
def migrate(
    old_id: OldId,
    new_program: NewProgram,
    cluster: Cluster,
    application_id: Annotated[str, "application.id of the new version: one that never ran."],
    from_: OldProgram,
    carrying: Carrying,
    instances: Annotated[
        int,
        typer.Option(min=0, help="Instances of the new version that follow before the switch."),
    ] = 1,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Compare count and checksum of each store before the switch: 48 bytes of memory "
            "for each key.",
        ),
    ] = True,
    back: Annotated[
        bool,
        "Give up a migration that has not switched: delete the internal topics and "
        "offsets of the new version.",
    ] = False,
    dry_run: Annotated[bool, "Only show the plan, what is copied, and how long it takes."] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Form = Output.text,
) -> int | None:
    """Carry the state and the offsets of an application into a new version, while both run.

    Start it, then start the new version as always: it follows the state, and gets tasks with the
    switch. Before that the old version goes on whatever happens; a command that was cut off may be
    called again. After it the old version is refused (EF-MIGRATED).
    """
    from everflow.kafka.client_settings import check_clients
    from everflow.migration.migrator import Migrator
    from everflow.migration.plan import planned, shown

    functions = carrying.functions()
    with ExitStack() as stack:
        config = _config(cluster, application_id)
        check_clients(config)
        status = stack.enter_context(own_status())
        admin = stack.enter_context(connected(config, status))
        topics = {name: shape.partitions for name, shape in admin.list_topics().items()}
        with status.waiting(f"loading {from_} and {new_program}", after_s=_LOADING_S):
            asked_of = [(from_, old_id), (new_program, application_id)]
            old, new = _programs(asked_of, topics, config)
        plan = planned(old, new, carrying.asked())
        if back:
            _give_up(config, admin, new, yes)
            return None
        migrator = Migrator(
            config=config,
            plan=plan,
            old=old,
            new=new,
            functions=functions,
            admin=admin,
            status=status,
            instances=instances,
            compare=compare,
        )
        migrator.check()
        found = migrator.estimated()
        lines = shown(plan, found)
        if dry_run:
            data = {"dry_run": True, "digest": plan.digest, "plan": plan.steps, **asdict(found)}
            show(output, data, lines)
            return None
        for line in lines:
            echo(line, err=output is Output.json)
        require_yes(yes, "Do it? Until the switch the old version goes on.", "nothing was changed")
        counts = _run(migrator)
        text = f"{old_id} was migrated to {application_id}, which goes on"
        data = {"dry_run": False, "digest": plan.digest, "switched": True, "entries": counts}
        data["phases_ms"] = migrator.phases_ms
        show(output, data, [*(f"  {name}: {n:,} entries" for name, n in counts.items()), text])
    return None


def _run(migrator: Migrator) -> dict[str, int]:
    goes_on = (
        f"{migrator.plan.old} goes on, unless the switch was being committed. Call the same "
        f"command again to go on, or with --back to delete what was copied"
    )
    try:
        return migrator.run()
    except StopRequestedError as stopped:
        stopped.said = goes_on
        raise
    except (RetriableError, UnknownOutcomeError) as away:
        raise MigrationError(
            f"The brokers at {migrator.config.bootstrap_servers} gave no answer, or cannot do what "
            f"they were asked: {away}. Do they run, and have their disks room? {goes_on}.",
            code="EF-MIGRATION-BROKERS",
        ) from away


def _config(cluster: Cluster, application_id: str) -> StreamsConfig:
    from everflow.config import StreamsConfig

    settings = option_settings(cluster.settings, cluster.settings_folder)
    own = {"application.id": application_id, "bootstrap.servers": cluster.servers}
    typed = {"bootstrap.servers": "--bootstrap-servers", "application.id": "--application-id"}
    with named_as_typed(typed):
        return StreamsConfig(**{**settings, **own})


def _function(store: str, target: str) -> Callable[[Any], Any]:
    """TopologyError for what cannot be imported, ConfigError for what is no function."""
    from everflow.cli.program import put_current_folder_on_path

    put_current_folder_on_path()
    module, separator, name = target.partition(":")
    if not (module and separator and name):
        raise ConfigError(
            f"--values {store}={target}: write it as STORE=module:function", code="EF-USAGE"
        )
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise TopologyError(
            f"--values {store}={target} cannot be imported: {type(error).__name__}: {error}",
            code="EF-PROGRAM",
        ) from error
    if not callable(found):
        raise ConfigError(f"--values {store}={target} is no function", code="EF-USAGE")
    return found


def _programs(
    asked: Sequence[tuple[str, str]], topics: Mapping[str, int], config: StreamsConfig
) -> list[Program]:
    """The programs, each read in its own process: two versions have modules of one name."""
    from everflow.travel.pickled_objects import PickledObjects

    found = []
    with tempfile.TemporaryDirectory(prefix="everflow-migrate-") as folder:
        for target, application_id in asked:
            file = Path(folder) / application_id
            given = {
                "application_id": application_id,
                "topics": topics,
                "optimization": config.optimization,
                "topic_config": config.topic(),
                "additional_retention_ms": config.windowstore_changelog_additional_retention_ms,
            }
            done = subprocess.run(
                [sys.executable, "-c", _WRITE, target, str(file)],
                input=json.dumps(given),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode or not file.is_file():
                raise TopologyError(
                    f"{target} cannot be loaded (exit code {done.returncode}):\n"
                    f"{done.stderr.strip()}",
                    code="EF-PROGRAM",
                )
            found.append(PickledObjects(file.read_bytes(), name="").copy())
    return found


def write_program() -> None:
    """The process of one program: writes what the migrator needs of it into a file."""
    from everflow.cli.commands import errors_for_people
    from everflow.cli.program import load_topology
    from everflow.migration.programs import program_of
    from everflow.spark.session import get_context
    from everflow.travel.pickled_objects import PickledObjects

    try:
        with errors_for_people(False):
            given = json.loads(sys.stdin.read())
            topology = load_topology(sys.argv[1], start_spark=get_context)
            data = PickledObjects.of(program_of(topology, **given)).data
            Path(sys.argv[2]).write_bytes(data)
    except typer.Exit as failed:
        sys.exit(failed.exit_code)


def _give_up(config: StreamsConfig, admin: ClusterAdmin, new: Program, yes: bool) -> None:
    """Delete what a migration has made. MigrationError where it has switched, or instances run."""
    from everflow.kafka.writing.transaction import fence_all
    from everflow.migration.migrator import transactional_id
    from everflow.protocol.messages import COPIED, FILLED, mark_in

    group = new.application_id
    found: Mapping[TopicPartition, CommittedOffset] = {}
    for fenced in (False, True):
        if fenced:
            # Of a migrator that runs, or was killed at its commit, the switch is over, or never is.
            fence_all(config.producer(), [transactional_id(group)], _BACK_S)
        found = admin.committed(group, None, _BACK_S, stable=fenced)
        kinds = {mark.kind if (mark := mark_in(one.metadata)) else "" for one in found.values()}
        if kinds - {FILLED, COPIED}:
            raise MigrationError(
                f"{group} has run: the switch took place, or it is another application. Nothing "
                f"was deleted.",
                code="EF-MIGRATION-PLAN",
            )
    if members := admin.members(group, _BACK_S):
        raise MigrationError(
            f"{len(members)} instances of {group} run. Stop them first. Nothing was deleted.",
            code="EF-MIGRATION-MEMBERS",
        )
    named = [*new.internal.repartition, *new.internal.changelog]
    there = sorted(admin.describe_topics(named))
    for line in [*(f"  delete topic {name}" for name in there), f"  delete group {group}"]:
        echo(line, err=True)
    require_yes(yes, "Do it? The old version is not concerned.", "nothing was changed")
    admin.delete_topics(there, _BACK_S)
    if found:
        admin.delete_group(group, _BACK_S)
    echo(f"the migration into {group} was given up", err=True)

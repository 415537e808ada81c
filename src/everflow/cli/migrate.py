"""``everflow migrate``: carries an application into another one, online (note 067)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    Cluster,
    Form,
    Output,
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
from everflow.logs import counted
from everflow.stop_signals import StopRequestedError

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.console.status import StatusLine
    from everflow.kafka.admin import ClusterAdmin
    from everflow.migration.migrator import Migrator
    from everflow.migration.plan import Asked
    from everflow.migration.programs import Program
    from everflow.topology.program import Topology

_BACK_S = 60.0
_SILENT_S = 1.0

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
            name: _function(name, to)
            for name, to in _by_name("--values", "STORE=module:function", self.values).items()
        }

    def asked(self) -> Asked:
        from everflow.migration.plan import Asked

        return Asked(
            renames=_by_name("--rename", "OLD=NEW", self.rename),
            functions=frozenset(_by_name("--values", "STORE=module:function", self.values)),
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

    asked = carrying.asked()
    functions = {} if back else carrying.functions()
    with ExitStack() as stack:
        config = _config(cluster, application_id)
        check_clients(config)
        status = stack.enter_context(own_status())
        admin = stack.enter_context(connected(config, status))
        topics = {name: shape.partitions for name, shape in admin.list_topics().items()}
        if back:
            _give_up(old_id, config, admin, topics, status, yes=yes, dry_run=dry_run)
            return None
        asked_of = [(from_, old_id), (new_program, application_id)]
        old, new = _programs(asked_of, topics, config, status)
        plan = planned(old, new, asked)
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
        goes_on = "which goes on" if instances else "which goes on once an instance of it runs"
        text = f"{old_id} was migrated to {application_id}, {goes_on}"
        data = {"dry_run": False, "digest": plan.digest, "switched": True, "entries": counts}
        data["phases_ms"] = migrator.phases_ms
        show(output, data, [*(f"  {name}: {n:,} entries" for name, n in counts.items()), text])
    return None


def _run(migrator: Migrator) -> dict[str, int]:
    try:
        return migrator.run()
    except StopRequestedError as stopped:
        stopped.said = _who_goes_on(migrator)
        raise
    except (RetriableError, UnknownOutcomeError) as away:
        raise MigrationError(
            f"The brokers at {migrator.config.bootstrap_servers} gave no answer, or cannot do what "
            f"they were asked: {away}. Do they run, and have their disks room? "
            f"{_who_goes_on(migrator)}.",
            code="EF-MIGRATION-BROKERS",
        ) from away


def _who_goes_on(migrator: Migrator) -> str:
    from everflow.migration.migrator import SWITCHED

    plan = migrator.plan
    if SWITCHED in migrator.phases_ms:
        return f"{plan.old} was migrated to {plan.new}, which goes on"
    return (
        f"{plan.old} goes on, unless the switch was being committed. Call the same command again "
        f"to go on, or with --back to delete what was copied"
    )


def _config(cluster: Cluster, application_id: str) -> StreamsConfig:
    from everflow.config import StreamsConfig

    settings = option_settings(cluster.settings, cluster.settings_folder)
    own = {"application.id": application_id, "bootstrap.servers": cluster.servers}
    typed = {"bootstrap.servers": "--bootstrap-servers", "application.id": "--application-id"}
    with named_as_typed(typed):
        return StreamsConfig(**{**settings, **own})


def _by_name(option: str, form: str, arguments: Sequence[str] | None) -> dict[str, str]:
    """What ``option`` says of each store. ConfigError."""
    found: dict[str, str] = {}
    for argument in arguments or ():
        name, separator, value = (part.strip() for part in argument.partition("="))
        if not (separator and name):
            raise ConfigError(f"{option} {argument!r}: write it as {form}", code="EF-USAGE")
        if found.setdefault(name, value) != value:
            raise ConfigError(
                f"{option} says of {name} both {found[name]!r} and {value!r}", code="EF-USAGE"
            )
    return found


def _function(store: str, target: str) -> Callable[[Any], Any]:
    """TopologyError for what cannot be imported, ConfigError for what is no function. What it
    prints goes to standard error, as standard output is the result's."""
    from everflow.cli.program import put_current_folder_on_path
    from everflow.user_program import ANY_FAILURE, error_text

    put_current_folder_on_path()
    module, separator, name = target.partition(":")
    if not (module and separator and name):
        raise ConfigError(
            f"--values {store}={target}: write it as STORE=module:function", code="EF-USAGE"
        )
    try:
        with redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ANY_FAILURE as error:
        raise TopologyError(
            f"--values {store}={target} cannot be imported: {error_text(error)}",
            code="EF-PROGRAM",
        ) from error
    if not callable(found):
        raise ConfigError(f"--values {store}={target} is no function", code="EF-USAGE")

    def convert(value: Any) -> Any:
        with redirect_stdout(sys.stderr):
            return found(value)

    return convert


def _programs(
    asked: Sequence[tuple[str, str]],
    topics: Mapping[str, int],
    config: StreamsConfig,
    status: StatusLine,
) -> list[Program]:
    """Of targets and their application ids."""
    from everflow.cli.program_processes import read
    from everflow.travel.pickled_objects import PickledObjects

    on_cluster = {
        "topics": topics,
        "optimization": config.optimization,
        "topic_config": config.topic(),
        "additional_retention_ms": config.windowstore_changelog_additional_retention_ms,
    }
    given = [(target, {"application_id": group, **on_cluster}) for target, group in asked]
    return [
        PickledObjects(data, name="").copy()
        for data in read(f"{__name__}:packed_program", given, status)
    ]


def packed_program(topology: Topology, given: Mapping[str, Any]) -> bytes:
    """What the migrator needs of a program."""
    from everflow.migration.programs import program_of
    from everflow.travel.pickled_objects import PickledObjects

    return PickledObjects.of(program_of(topology, **given)).data


def _give_up(
    old_id: str,
    config: StreamsConfig,
    admin: ClusterAdmin,
    topics: Mapping[str, int],
    status: StatusLine,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete what a migration has made; no program is read, as the one that made it may not load,
    or be refused now. ``dry_run``: only say what. MigrationError where it has switched, or
    instances run."""
    from everflow.cli.cluster_reset import leftovers
    from everflow.kafka.writing.transaction import fence_all
    from everflow.migration.migrator import transactional_id
    from everflow.protocol.messages import COPIED, FILLED, mark_in

    group = config.application_id
    lasting = partial(status.waiting, after_s=_SILENT_S)
    for fenced in (False,) if dry_run else (False, True):
        if fenced:
            # Of a migrator that runs, or was killed at its commit, the switch is over, or never is.
            with lasting(f"ending what the migration into {group} still writes"):
                fence_all(config.producer(), [transactional_id(group)], _BACK_S)
        with lasting(f"reading the offsets of {group}"):
            found = admin.committed(group, None, _BACK_S, stable=fenced)
        marks = [mark_in(one.metadata) for one in found.values()]
        kinds = {mark.kind if mark else "" for mark in marks}
        if kinds - {FILLED, COPIED}:
            raise MigrationError(
                f"{group} has run: the switch took place, or it is another application. Nothing "
                f"was deleted.",
                code="EF-MIGRATION-PLAN",
            )
        sources = {mark.application_id for mark in marks if mark and mark.kind == FILLED}
        if sources - {old_id}:
            raise MigrationError(
                f"{group} is being filled from {', '.join(sorted(sources))}, not from {old_id}. "
                f"Nothing was deleted.",
                code="EF-MIGRATION-PLAN",
            )
        with lasting(f"asking who is in the group {group}"):
            members = admin.members(group, _BACK_S)
        if members:
            raise MigrationError(
                f"The group {group} has {counted(len(members), 'member')}. Stop its instances "
                f"first (one that was killed stays until its session.timeout.ms is over). Nothing "
                f"was deleted.",
                code="EF-MIGRATION-MEMBERS",
            )
    if not found:
        echo(f"no migration into {group} is under way: nothing was deleted", err=True)
        return
    with lasting("asking which groups there are"):
        others = admin.groups(_BACK_S)
    there = [one.topic for one in leftovers(group, topics, (), others) if not one.group]
    for line in [*(f"  delete topic {name}" for name in there), f"  delete group {group}"]:
        echo(line, err=True)
    if dry_run:
        return
    require_yes(yes, f"Do it? {old_id} is not concerned.", "nothing was changed")
    with lasting(f"deleting {counted(len(there), 'topic')} and the group {group}"):
        admin.delete_topics(there, _BACK_S)
        admin.delete_group(group, _BACK_S)
    echo(f"the migration into {group} was given up, and {old_id} goes on", err=True)

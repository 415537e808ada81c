"""``everflow topic keys``: its options; `everflow.kafka.reading.key_counts` does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.cluster_options import (
    LOCAL_BROKER,
    ClientSettings,
    Debug,
    ErrorsForPeople,
    Servers,
    SettingsFolders,
)
from everflow.cli.formats import Form, Format, Output, WindowKind, show

if TYPE_CHECKING:
    from everflow.kafka.reading.key_counts import KeyCount, KeyCounts


def add_keys(topic: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the command to the group ``everflow topic``."""

    @topic.command()
    def keys(
        name: Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")],
        servers: Servers = LOCAL_BROKER,
        records: Annotated[
            int, typer.Option(min=1, help="Read so many of each partition, from its end.")
        ] = 100_000,
        top: Annotated[int, typer.Option(min=1, help="Show so many keys and partitions.")] = 10,
        key: Annotated[Format, typer.Option("--key", help="What keys are.")] = Format.string,
        window: Annotated[
            WindowKind | None, typer.Option(help="Keys of windowed results, as for consume.")
        ] = None,
        output: Form = Output.text,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Show the most frequent keys of the latest committed records, and the partitions with the
        most records a second. Joins no group."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status
            from everflow.cli.records import decoded, partitions_of, windowed
            from everflow.kafka.reading.key_counts import count_keys, frequent, latest
            from everflow.serdes import SerdeError

            config = client_config(servers, settings, settings_folder)
            with own_status() as status, connected(config, status) as admin:
                partitions = partitions_of(admin, name)
                starts = admin.list_offsets(partitions, "earliest", "read_committed")
                ends = admin.list_offsets(partitions, "latest", "read_committed")
                with status.waiting(f"reading the latest records of {name}", after_s=1.0):
                    found = count_keys(config, latest(starts, ends, records))

            def text(one: KeyCount) -> str:
                read = decoded if window is None else partial(windowed, window=window)
                try:
                    return read(one.key, key)
                except SerdeError as error:
                    raise SerdeError(
                        f"a key of {name}-{one.partition} cannot be read: {error}\n--key says what "
                        f"keys are (bytes shows any), --window time or session that they are of "
                        f"windows."
                    ) from None

            shown = [(text(one), one) for one in frequent(found, top)]
            show(output, _as_json(found, shown, top), _lines(found, shown, top))


def _as_json(
    found: Sequence[KeyCounts], shown: Sequence[tuple[str, KeyCount]], top: int
) -> dict[str, object]:
    from everflow.kafka.reading.key_counts import busiest

    return {
        "records": sum(one.records for one in found),
        "keys": [{**one._asdict(), "key": text} for text, one in shown],
        "partitions": [one._asdict() for one in busiest(found, top)],
    }


def _lines(
    found: Sequence[KeyCounts], shown: Sequence[tuple[str, KeyCount]], top: int
) -> list[str]:
    from everflow.console.observed import table
    from everflow.kafka.reading.key_counts import busiest

    if not shown:
        return [
            "no records: nothing was written, or what was is deleted. A repartition topic has what "
            "waits alone, so look while the application is behind, or at the topic in front of it"
        ]
    rate: Callable[[float], str] = lambda per_s: f"{per_s:,.1f}"  # noqa: E731
    keys = [
        (text, str(one.partition), f"{one.records:,}", f"{one.share:.1%}", rate(one.per_s))
        for text, one in shown
    ]
    partitions = [
        (str(one.partition), f"{one.records:,}", f"{one.keys:,}", rate(one.per_s))
        for one in busiest(found, top)
    ]
    return [
        *table([("key", "partition", "records", "of its partition", "records/s"), *keys]),
        "",
        *table([("partition", "records", "keys", "records/s"), *partitions]),
    ]

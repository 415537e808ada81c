"""Where a migration puts each entry of each kind of store is where the program puts it itself, with
as many partitions from the start."""

from collections.abc import Mapping, Sequence

import pytest
from pyspark.sql import SparkSession

from everflow import StreamsBuilder, Topology, serdes
from everflow.migration.entries import partitions_of_keys
from everflow.migration.programs import Form, Program, program_of
from everflow.testing import TopologyTestDriver
from integration.lifecycle.carried_families import REPLICAS, Fed, add
from semantics.families import PAGES

pytestmark = pytest.mark.spark

RAW = serdes.bytes_()
PARTITIONS = 6
Places = Mapping[str, Mapping[bytes, int]]
"""By store and key: the partition."""


def topology_of(partitions: int) -> Topology:
    builder = StreamsBuilder()
    add(builder, list(PAGES), "p", "v", partitions)
    return builder.build()


def program(partitions: int, inputs: Sequence[str]) -> Program:
    return program_of(
        topology_of(partitions),
        application_id="shop",
        topics=dict.fromkeys(inputs, 1),
        optimization="none",
        topic_config={},
        additional_retention_ms=0,
    )


def places(partitions: int, fed: Fed) -> list[Places]:
    """In the middle of the records, where much waits, and behind them."""
    found: list[Places] = []
    with TopologyTestDriver(
        topology_of(partitions),
        emit_every_update=True,
        partitions=dict.fromkeys(fed.inputs, 1),
    ) as driver:
        topics = {one: driver.create_input_topic(one, RAW, RAW) for one in fed.inputs}
        for at, step in enumerate(fed.steps):
            driver.pipe_batch({topics[one]: records for one, records in step.items()})
            if at in (fed.half - 1, fed.half, len(fed.steps) - 1):
                found.append(
                    {
                        name: {
                            key: number
                            for number, part in enumerate(parts)
                            for key, _ in part.range(None, None)
                        }
                        for name, parts in driver._stores._parts.items()
                    }
                )
    return found


def test_entries_go_where_the_program_would_have_put_them(spark: SparkSession) -> None:
    fed = Fed(list(PAGES), "p", spread=True)
    old = program(4, fed.inputs)
    before = places(4, fed)
    compared: dict[Form, int] = {}
    for then, now in zip(before, places(PARTITIONS, fed), strict=True):
        for store in old.stores:
            form, window_bytes = old.forms[store]
            keys = [key for key in then[store] if key in now[store]]
            # A time in a key may go by which record of a step came first in its task.
            assert 2 * len(keys) >= len(then[store]), store
            chosen = partitions_of_keys(keys, form, window_bytes, PARTITIONS).tolist()
            wanted = [
                now[store][key] if form is not Form.SUPPRESSED or key[0] < 2 else -1 for key in keys
            ]
            assert chosen == wanted, (store, form)
            compared[form] = compared.get(form, 0) + len(keys)
    assert compared.keys() == {*Form} - {Form.OWN, Form.LOOKUPS}
    assert min(compared.values()) >= REPLICAS, compared

"""The HTTP service of docs/QUERIES.md and examples/word_service.py: two instances answer for the
whole application."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

import word_service
from everflow.assignment.user_data import HostTasks
from everflow.instance.client_state import ClientState
from everflow.instance.query.queries import default_partitioner
from everflow.records import TaskId
from unit.instance.query.query_stores import COUNTS, PARTITIONS, Instance
from word_service import serve

PAGE = Path(__file__).parents[4] / "docs" / "QUERIES.md"
KEYS = {f"key {i}": i for i in range(20)}


def ask(host: str, key: str, query: str = "") -> Any:
    with urlopen(f"http://{host}/counts/{key.replace(' ', '%20')}{query}", timeout=10) as answer:
        return json.loads(answer.read())


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[dict[str, Instance]]:
    """Two, by end point; each has half of the partitions."""
    made: dict[str, Instance] = {}
    servers = []
    for number in range(2):
        instance = Instance(tmp_path / str(number))
        for partition in range(number, PARTITIONS, 2):
            mine = {
                k.encode(): v
                for k, v in KEYS.items()
                if default_partitioner(k.encode(), PARTITIONS) == partition
            }
            instance.put(partition, COUNTS, mine)
            instance.end = max(instance.end, len(mine))
        servers.append(serve(cast(Any, instance), "127.0.0.1", 0))
        made[f"127.0.0.1:{servers[-1].server_address[1]}"] = instance
    hosts = {host: HostTasks(frozenset(instance.active)) for host, instance in made.items()}
    for instance in made.values():
        instance.hosts = hosts
    yield made
    for server in servers:
        server.shutdown()
        server.server_close()
    for instance in made.values():
        instance.close()


def test_the_service_of_the_page_is_the_example() -> None:
    (code,) = re.findall(r"```python\n(def serve.*?)```", PAGE.read_text(), re.DOTALL)
    assert code in Path(word_service.__file__).read_text()


def test_any_instance_answers_for_every_key(instances: dict[str, Instance]) -> None:
    for host in instances:
        assert {key: ask(host, key) for key in KEYS} == KEYS
        assert ask(host, "never counted") is None


def test_while_tasks_move_a_copy_that_is_recent_enough_answers(
    instances: dict[str, Instance],
) -> None:
    for instance in instances.values():
        instance.state, instance.hosts = ClientState.REBALANCING, {}
        instance.copies, instance.active = instance.active, {}
    first, second = instances
    key = next(key for key in KEYS if default_partitioner(key.encode(), PARTITIONS) in (0, 2))
    assert TaskId(0, default_partitioner(key.encode(), PARTITIONS)) in instances[first].copies
    assert ask(first, key) == KEYS[key]
    instances[first].end += 2_000
    instances[first].clock.advance(10_000)
    for host, reason in ((first, "more than max_lag=1000"), (second, "retry shortly")):
        with pytest.raises(HTTPError) as raised:
            ask(host, key)
        assert raised.value.code == 503
        assert reason in raised.value.read().decode()


def test_with_stale_a_copy_answers_where_the_owner_is_gone(instances: dict[str, Instance]) -> None:
    first = next(iter(instances))
    here = instances[first]
    here.copies, here.active = here.active, {}
    nobody = "127.0.0.1:1"
    here.hosts = {nobody: HostTasks(frozenset(here.copies))}
    key = next(
        key
        for key in KEYS
        if TaskId(0, default_partitioner(key.encode(), PARTITIONS)) in here.copies
    )
    with pytest.raises(URLError) as gone:
        ask(first, key)
    assert not isinstance(gone.value, HTTPError), (
        "the client was sent to an owner that does not answer"
    )
    assert ask(first, key, "?stale") == KEYS[key]

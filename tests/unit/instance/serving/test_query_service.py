"""The query service over two instances on this machine: real stores, real HTTP, no brokers."""

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow import serdes
from everflow.assignment.user_data import HostTasks
from everflow.client import QueryClient, QueryRefusedError, QueryUnavailableError
from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.instance.client_state import ClientState
from everflow.instance.query.queries import StoreSite, default_partitioner
from everflow.instance.serving import answers
from everflow.instance.serving.answers import (
    MOST_BODY_BYTES,
    MOST_KEY_BYTES,
    MOST_KEYS,
    MOST_PAGE_BYTES,
)
from everflow.instance.serving.routes import COPIES, PATHS, served
from everflow.instance.tasks.task import TaskStore
from everflow.records import TaskId, TopicPartition
from everflow.serdes.windowed import session_key, window_store_key
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.windows import Windowed
from unit.builders import store_spec, streams_config
from unit.instance.query.query_stores import Instance

PARTITIONS = 4
COUNTS = store_spec("counts")
ORDERS = store_spec(
    "orders",
    key=serdes.json("shop string, number bigint"),
    value=serdes.json("price double, note binary, at timestamp"),
)
NUMBERS = store_spec("numbers", key=serdes.long())
WINDOWS = store_spec(
    "windows", "window", key=serdes.long(), retention_ms=10**12, window_size_ms=1_000
)
SESSIONS = store_spec("sessions", "session", retention_ms=10**12)
PAGES = store_spec("pages", "versioned", value=serdes.string(), retention_ms=10**12)
SITES = {
    spec.name: StoreSite(
        spec=spec, subtopology=0, partitions=PARTITIONS, decode=spec.value_serde.decode
    )
    for spec in (COUNTS, ORDERS, NUMBERS, WINDOWS, SESSIONS, PAGES)
}
WORDS = {f"word {number}/ä": number for number in range(2_500)}
LARGE = 600_000
LARGE_PAGES, LARGE_VERSIONS = 16, 9


def configured(**more: Any) -> StreamsConfig:
    """Of an instance that is asked at a free port of this machine, where nothing else is said."""
    return streams_config(**{"query_listen": "127.0.0.1:0", **more})


def stored_key(spec: StoreSpec, key: Any) -> bytes:
    data = spec.key_serde.encode(key)
    assert data is not None
    return data


def home(spec: StoreSpec, key: Any) -> int:
    return default_partitioner(stored_key(spec, key), PARTITIONS)


@dataclass
class World:
    folder: Path
    instances: list[Instance]
    addresses: list[str]

    def put(
        self, spec: StoreSpec, partition: int, entries: Mapping[bytes, Any], time: int = 0
    ) -> None:
        path = self.folder / spec.name / str(partition)
        store = LmdbStore.open(path, kind=spec.kind, retention_ms=spec.retention_ms)
        values = [spec.value_serde.encode(value) for value in entries.values()]
        position = (store.position or 0) + len(entries)
        store.load_chunk(list(entries), values, np.full(len(entries), time, np.int64), position)

    def stores(self, partition: int) -> list[TaskStore]:
        return [
            TaskStore(name, self.folder / name / str(partition), TopicPartition(name, partition))
            for name in SITES
        ]

    def settle(self, owners: Mapping[int, int]) -> None:
        """Partition -> which instance has it active; the others have copies."""
        for number, instance in enumerate(self.instances):
            tasks = {TaskId(0, partition): self.stores(partition) for partition in owners}
            mine = {task for task in tasks if owners[task.partition] == number}
            instance.active = {task: tasks[task] for task in mine}
            instance.copies = {task: stores for task, stores in tasks.items() if task not in mine}
            instance.hosts = {
                address: HostTasks(
                    frozenset(TaskId(0, p) for p, owner in owners.items() if owner == at),
                    frozenset(),
                )
                for at, address in enumerate(self.addresses)
            }

    def client(self, **values: Any) -> QueryClient:
        return QueryClient(self.addresses[0], **{"patience": 0.0, **values})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as held:
        instances, addresses = [], []
        for _ in range(2):
            instance = Instance(folder, sites=tuple(SITES.values()))
            instances.append(instance)
            addresses.append(held.enter_context(served(instance, configured())))
        made = World(folder, instances, addresses)
        for partition in range(PARTITIONS):
            made.put(
                COUNTS,
                partition,
                {k.encode(): v for k, v in WORDS.items() if home(COUNTS, k) == partition},
            )
            for spec in (ORDERS, NUMBERS, WINDOWS, SESSIONS, PAGES):
                made.put(spec, partition, {})
        order = {"shop": "s/1", "number": 7}
        value = {"price": 1.5, "note": b"\x00\xff", "at": None}
        made.put(ORDERS, home(ORDERS, order), {stored_key(ORDERS, order): value})
        made.put(NUMBERS, home(NUMBERS, 1), {stored_key(NUMBERS, 1): 11})
        for key in (-5, 12):
            data = stored_key(WINDOWS, key)
            entries = {window_store_key(data, start): start for start in range(0, 20_000, 1_000)}
            made.put(WINDOWS, home(WINDOWS, key), entries)
        sessions = {session_key(b"ann", start, start + 5): start for start in (0, 100, 200)}
        made.put(SESSIONS, home(SESSIONS, "ann"), sessions)
        for number in range(LARGE_PAGES):
            page = f"page {number}"
            made.put(PAGES, home(PAGES, page), {page.encode(): str(number) * LARGE}, time=number)
        for time in range(LARGE_VERSIONS):
            text = str(time % 10) * LARGE
            made.put(PAGES, home(PAGES, "start"), {b"start": text}, time=1_000 + time)
        yield made


@pytest.fixture(autouse=True)
def settled(world: World) -> None:
    for instance in world.instances:
        instance.state = ClientState.RUNNING
    world.settle({0: 0, 1: 1, 2: 0, 3: 1})


def raw(
    world: World,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(world.addresses[0], timeout=20)
    connection.request(method, path, body, dict(headers or {}))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    try:
        return answer.status, json.loads(content), answer.headers
    except ValueError:
        return answer.status, content.decode(), answer.headers


def test_any_instance_answers_for_every_key(world: World) -> None:
    with world.client() as client:
        for word in list(WORDS)[:50]:
            assert client.get("counts", word) == WORDS[word]
        assert client.get("counts", "nowhere") is None
        assert client.get("orders", {"shop": "s/1", "number": 7}) == {
            "price": 1.5,
            "note": "AP8=",
            "at": None,
        }
        for key in (-5, 12):
            assert client.fetch_window("windows", key, 3_000) == 3_000
            assert client.fetch_window("windows", key, 3_001) is None
        assert client.owner("counts", "word 1/ä").active in world.addresses


def test_many_keys_travel_together_whoever_has_them(world: World) -> None:
    keys = [*WORDS, "nowhere"]
    with world.client() as client:
        assert client.get_many("counts", keys) == [*WORDS.values(), None]


def test_a_window_of_many_keys_travels_together(world: World) -> None:
    """Of keys that are here, that have no such window, and of whom another instance knows."""
    keys = [-5, 12, *range(100, 120)]
    body = json.dumps({"keys": keys}).encode()
    status, told, _ = raw(world, "/stores/windows/window/3000", "POST", body)
    assert (status, told["next"], len(told["entries"])) == (200, None, len(keys))
    for key, entry in zip(keys, told["entries"], strict=True):
        assert entry["key"] == key
        if home(WINDOWS, key) in (0, 2):
            assert entry["value"] == (3_000 if key in (-5, 12) else None)
        else:
            assert entry["host"] == world.addresses[1]
    assert raw(world, "/stores/counts/window/3000", "POST", body)[0] == 400
    assert raw(world, "/stores/windows/window/soon", "POST", body)[0] == 400


def test_ranges_go_over_all_instances_page_by_page(world: World) -> None:
    with world.client() as client:
        assert dict(client.range("counts")) == WORDS
        every = list(client.range("counts", reverse=True))
        assert len(every) == len(WORDS)
        of_partition = [word for word, _ in every if home(COUNTS, word) == 2]
        assert of_partition == sorted(of_partition, reverse=True)
        assert dict(client.range("counts", prefix="word 12")) == {
            word: count for word, count in WORDS.items() if word.startswith("word 12")
        }
        bounded = dict(client.range("counts", "word 2", "word 21"))
        assert bounded == {w: n for w, n in WORDS.items() if "word 2" <= w <= "word 21"}


def test_windows_and_sessions_come_in_order_of_time(world: World) -> None:
    with world.client() as client:
        found = list(client.fetch("windows", 12, 2_000, 5_000))
        assert found == [
            (Windowed(12, start, start + 1_000), start) for start in range(2_000, 6_000, 1_000)
        ]
        assert list(client.fetch("windows", 12, 2_000, 5_000, reverse=True)) == found[::-1]
        assert len(list(client.fetch_all("windows", 0, 9_999))) == 20
        assert [value for _, value in client.find_sessions("sessions", "ann", 50, 150)] == [100]
        assert [value for _, value in client.find_sessions("sessions", "ann", reverse=True)] == [
            200,
            100,
            0,
        ]


def test_a_page_ends_where_the_next_one_begins(world: World) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    for asked, whole in (
        ("/stores/counts/entries?", len(WORDS)),
        ("/stores/counts/entries?reverse=true&", len(WORDS)),
        ("/stores/windows/windows?", 40),
        ("/stores/windows/windows/12?reverse=true&", 20),
        ("/stores/sessions/sessions/ann?", 3),
    ):
        found: list[Any] = []
        after, limit = "", 1 if whole < 100 else 777
        while True:
            status, page, _ = raw(world, f"{asked}limit={limit}{after}")
            assert status == 200, page
            (rows,) = (page[what] for what in ("entries", "windows", "sessions") if what in page)
            assert len(rows) <= limit
            found += rows
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        seen = {json.dumps([row["key"], row.get("start")]) for row in found}
        assert len(found) == len(seen) == whole, asked


def test_a_page_is_bounded_by_bytes_too(world: World) -> None:
    """Twenty-five values of 600 kB: no answer holds more than seven of them, and none is lost."""
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    largest = MOST_PAGE_BYTES + LARGE
    names = [f"page {number}" for number in range(LARGE_PAGES)]

    def told(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        status, page, headers = raw(world, path, "GET" if data is None else "POST", data)
        assert status == 200, page
        assert int(headers["Content-Length"]) < largest
        return page

    found: list[str] = []
    after = ""
    while True:
        page = told(f"/stores/pages/entries?limit=1000{after}")
        assert 0 < len(page["entries"]) < 8
        found += [row["key"] for row in page["entries"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert sorted(found) == sorted([*names, "start"])
    of_keys = told("/stores/pages/entries", {"keys": names})
    assert len(of_keys["entries"]) == of_keys["next"] == 6
    of_key = told("/stores/pages/versions/start")
    assert [len(of_key["versions"]), of_key["next"]] == [6, 1_006]
    with world.client() as client:
        values = client.get_many("pages", [*names, "nowhere"])
        assert values == [*(str(number) * LARGE for number in range(LARGE_PAGES)), None]
        times = [one["timestamp"] for one in client.versions("pages", "start")]
        assert times == [1_000 + time for time in range(LARGE_VERSIONS)]


def test_a_larger_entry_stands_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_PAGE_BYTES", 1_000)
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    page = raw(world, "/stores/pages/entries?limit=1000")[1]
    assert len(page["entries"]) == 1
    with world.client() as client:
        assert len(list(client.range("pages"))) == LARGE_PAGES + 1
        assert dict(client.range("counts")) == WORDS


def test_what_moves_is_waited_for_and_a_copy_answers_for_who_allows_it(world: World) -> None:
    word = next(word for word in WORDS if home(COUNTS, word) == 0)
    for instance in world.instances:
        instance.hosts = {}
    world.instances[0].active.pop(TaskId(0, 0))
    status, told, headers = raw(world, f"/stores/counts/entries/{word.split('/')[0].split()[0]}")
    with world.client() as client:
        with pytest.raises(QueryUnavailableError, match="counts"):
            client.get("counts", word)
        world.instances[0].copies[TaskId(0, 0)] = world.stores(0)
        assert client.get("counts", word, stale=True) == WORDS[word]
    assert status in (404, 503), told
    assert status == 404 or headers["Retry-After"] == "1"


def test_an_instance_that_starts_or_has_ended_says_so(world: World) -> None:
    world.instances[0].state = ClientState.ERROR
    status, told, headers = raw(world, "/stores/counts/entries/a")
    assert (status, told["error"]["code"]) == (503, "EF-STATE-UNAVAILABLE")
    assert "state ERROR" in told["error"]["message"]
    assert headers["Retry-After"] == "1"


BAD = [
    ("/nothing", 404, "There is no /nothing"),
    ("/stores/none/entries/a", 404, "it has: counts"),
    ("/stores/counts/windows/a", 400, "ask /stores/counts/entries instead"),
    ("/stores/windows/entries/1", 400, "ask /stores/windows/windows instead"),
    ("/stores/windows/windows/abc", 400, "'abc' is no key"),
    ("/stores/windows/window/soon/1", 400, "'soon' is no time"),
    ("/stores/windows/window/-1/1", 400, "'-1' is no time"),
    (f"/stores/windows/window/{10**19}/1", 400, "is no time"),
    ("/stores/counts/entries/%ff", 400, "is not UTF-8"),
    ("/stores/counts/entries?first=%ff", 400, "is not UTF-8"),
    ("/stores/orders/entries/%7B%22shop%22", 400, "is no key"),
    ("/stores/counts/versions/a", 400, "is a key_value store"),
    ("/stores/counts/entries?limit=0", 400, "limit=0: "),
    ("/stores/counts/entries?limit=1001", 400, "at most 1000"),
    ("/stores/counts/entries?limit=many", 400, "no whole number"),
    ("/stores/windows/windows/1?from=2026-11-26T10:00:00Z", 400, "since the epoch"),
    ("/stores/counts/entries?frist=a", 400, "frist: unknown parameter"),
    ("/stores/counts/entries?first=a&first=b", 400, "first is given"),
    ("/stores/counts/entries?prefix=a&reverse=true", 400, "prefix stands alone"),
    ("/stores/counts/entries?after=!", 400, "page before"),
    ("/stores/counts/entries?reverse=perhaps", 400, "true or false"),
    ("/stores/counts/entries/a?max_lag=3", 400, "goes with stale=true"),
    ("/stores/counts/entries/a?stale=true&max_lag=-1", 400, "at least 0"),
    ("/stores/counts/entries/a?partition=9", 400, "partitions 0 to 3"),
    ("/stores/counts/entries/a?as_of=3", 400, "is a key_value store"),
    ("/stores/counts/entries/" + "k" * (MOST_KEY_BYTES + 1), 413, "are the most"),
]


@pytest.mark.parametrize(("path", "status", "text"), BAD, ids=[path[:40] for path, _, _ in BAD])
def test_what_is_not_understood_is_said(world: World, path: str, status: int, text: str) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    found, told, _ = raw(world, path)
    assert found == status, told
    assert text in told["error"]["message"]


@pytest.mark.parametrize(
    ("spec", "key", "text"),
    [
        (COUNTS, 12, "'counts' are string: .* int 12"),
        (COUNTS, None, "'counts' are string, never null"),
        (COUNTS, {"a": 1}, "expected text, found dict"),
        (NUMBERS, "1", "'numbers' are long: .* str '1'"),
        (NUMBERS, 1.0, "found float 1.0"),
        (NUMBERS, True, "found bool True"),
        (NUMBERS, None, "never null"),
        (ORDERS, "s/1", " object .*, found str 's/1'"),
    ],
    ids=lambda value: value.name if isinstance(value, StoreSpec) else repr(value)[:40],
)
def test_a_key_of_another_type_is_told(world: World, spec: StoreSpec, key: Any, text: str) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    asked = json.dumps({"keys": [key]}).encode()
    status, told, _ = raw(world, f"/stores/{spec.name}/entries", "POST", asked)
    assert (status, told["error"]["code"]) == (400, "EF-SERDE"), told
    assert re.search(text, told["error"]["message"])
    calls: list[Callable[[QueryClient], Any]] = [
        lambda client: client.get(spec.name, key),
        lambda client: client.get_many(spec.name, [key]),
        lambda client: client.owner(spec.name, key),
    ]
    if key is not None:  # an open end
        calls.append(lambda client: list(client.range(spec.name, key)))
    with world.client() as client:
        for call in calls:
            with pytest.raises(QueryRefusedError) as refused:
                call(client)
            assert re.search(text, str(refused.value))
            assert (refused.value.status, refused.value.code) == (400, "EF-SERDE")


@pytest.mark.parametrize("path", ["word%201/%C3%A4", "word%201%2F%c3%a4"])
def test_a_slash_in_a_path_may_be_of_its_key(world: World, path: str) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    assert raw(world, f"/stores/counts/entries/{path}")[0] == 200
    assert "entries" not in raw(world, "/stores/counts/entries/")[1], "the key of no letters"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.9.8.7", ""])
def test_the_service_answers_its_own_host_alone(world: World, host: str) -> None:
    assert raw(world, "/stores", headers={"Host": "localhost"})[0] == 200
    status, told, _ = raw(world, "/stores", headers={"Host": host})
    assert status == 421
    assert "EF-HOST" in str(told)


def test_a_key_of_the_type_is_found_by_all_ways(world: World) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    asked = json.dumps({"keys": [1, 2]}).encode()
    status, told, _ = raw(world, "/stores/numbers/entries", "POST", asked)
    assert (status, [one.get("value") for one in told["entries"]]) == (200, [11, None])
    assert raw(world, "/stores/numbers/entries/1")[1]["value"] == 11
    with world.client() as client:
        assert client.get("numbers", 1) == client.get("numbers", np.int64(1)) == 11
        assert client.get_many("numbers", [np.int64(1), 2]) == [11, None]
        assert dict(client.range("numbers", 0, 1)) == {1: 11}
        order = {"shop": "s/1", "number": np.int64(7)}
        assert client.get("orders", order)["price"] == 1.5
        assert client.get_many("orders", [order])[0]["price"] == 1.5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[1]", 400),
        (b'{"keys": 1}', 400),
        (b'{"keys": [' + b",".join([b'"a"'] * (MOST_KEYS + 1)) + b"]}", 413),
        (b"x" * (MOST_BODY_BYTES + 1), 413),
    ],
)
def test_bodies_have_a_form_and_a_size(world: World, body: bytes, status: int) -> None:
    assert raw(world, "/stores/counts/entries", "POST", body)[0] == status
    assert raw(world, "/stores", "DELETE")[0] == 405


def test_the_client_bounds_what_it_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    monkeypatch.setattr("everflow.client.MOST_ANSWER_BYTES", 20)
    with world.client() as client, pytest.raises(QueryRefusedError, match="larger than 20 bytes"):
        client.stores()
    monkeypatch.undo()
    with world.client() as client:
        assert client.stores()


def test_the_client_says_what_was_refused(world: World) -> None:
    with world.client() as client:
        with pytest.raises(QueryRefusedError, match="it has: counts") as refused:
            client.get("none", "a")
        assert (refused.value.status, refused.value.code) == (404, "EF-NO-STORE")


@pytest.mark.parametrize(
    "path",
    [
        "/stores/counts/entries?" + "n" * 60_000,
        "/stores/counts/entries?limit=" + "n" * 60_000,
        "/stores/counts/entries?after=" + "n" * 60_001,
        "/stores/counts/entries?" + "&".join(f"n{number}" for number in range(10_000)),
        "/stores/windows/window/" + "n" * 60_000 + "/1",
        "/stores/windows/windows/" + "n" * 15_000,
        "/stores/counts/entries/" + "n" * 15_000,
        "/" + "n" * 60_000,
    ],
    ids=lambda path: path[:40],
)
def test_a_refusal_says_the_beginning_of_what_was_sent(world: World, path: str) -> None:
    world.settle(dict.fromkeys(range(PARTITIONS), 0))
    status, told, _ = raw(world, path)
    assert status in (400, 404)
    assert "n" * 90 in told["error"]["message"] or "n0, n1, n10" in told["error"]["message"]
    assert len(told["error"]["message"]) < 400


def test_its_description_has_every_path(world: World) -> None:
    status, described, _ = raw(world, "/openapi.json")
    assert status == 200
    assert described["openapi"] == "3.1.0"
    assert sum(len(of_path) for of_path in described["paths"].values()) == len(PATHS)
    operation = described["paths"]["/stores/{store}/entries/{key}"]["get"]
    named = [one["name"] for one in operation["parameters"]]
    assert named == ["store", "key", *COPIES, "as_of"]
    assert raw(world, "/")[:2] == (200, described)
    names = [store["name"] for store in raw(world, "/stores")[1]["stores"]]
    assert names == sorted(SITES)
    about = raw(world, "/stores/counts")[1]
    assert (about["here"], about["copies"]) == ([0, 2], [1, 3])
    assert raw(world, "/instances")[1]["instances"][0]["host"] in world.addresses


def test_how_the_instance_does_is_told_where_it_is_watched(world: World) -> None:
    """For the pages of other instances, which know this address alone."""
    status, content, _ = raw(world, "/status")
    assert (status, "http.listen" in content["error"]["message"]) == (404, True)
    instance = world.instances[0]
    with served(instance, configured(), lambda: {"state": "RUNNING"}) as address:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/status")
        assert json.loads(connection.getresponse().read()) == {"state": "RUNNING"}
        connection.close()


def test_a_token_is_asked_for(tmp_path: Path, world: World) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old-token-old-token\nnew-token-new-token\n")
    instance, given = world.instances[0], {"query_token_file": str(tokens)}
    public = {"query_listen": "0.0.0.0:0", "application_server": "localhost:9"}
    with served(instance, configured(**given, **public)) as address:
        assert address == "localhost:9", "what the user says others reach it at"
    with served(instance, configured(**given)) as address:
        for token in ("old-token-old-token", "new-token-new-token"):
            with QueryClient(address, token=token, patience=0.0) as client:
                assert len(client.stores()) == len(SITES)
        connection = http.client.HTTPConnection(address, timeout=20)
        for scheme, status in (("bearer", 200), ("Basic", 401)):
            headers = {"Host": "proxy.example", "Authorization": f"{scheme} old-token-old-token"}
            connection.request("GET", "/stores/counts", headers=headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True), scheme
        connection.close()
        unknown = "The token that was sent is not one that this service knows"
        missing = "asks for a token"
        for wrong, told in (
            (None, missing),
            ("", missing),
            ("wrong", unknown),
            ("old-token-old-tokeN", unknown),
        ):
            with (
                QueryClient(address, token=wrong, patience=0.0) as client,
                pytest.raises(QueryRefusedError, match=told) as refused,
            ):
                client.stores()
            assert refused.value.status == 401


def test_an_address_that_is_taken_is_told_by_its_setting(world: World) -> None:
    with (
        pytest.raises(ConfigError, match=r"query\.listen = '127.* listened at"),
        served(world.instances[0], configured(query_listen=world.addresses[0])),
    ):
        pass

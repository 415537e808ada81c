"""`everflow reset`: what its plan says, and what it refuses before it asks a broker."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from rich.console import Console
from starlette.applications import Starlette
from typer.testing import CliRunner

from everflow import StreamsBuilder, StreamsConfig
from everflow.cli import cluster_reset, watch
from everflow.cli.app import app
from everflow.cli.cluster_reset import (
    Plan,
    Position,
    chosen_topics,
    leftovers,
    new_offsets,
    parse_position,
    still_running,
)
from everflow.cli.watch import drained, goes_for_good, read_stateful_set, returns, write_rack
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, FatalError, RetriableError
from everflow.kafka.admin import ClusterAdmin, MemberDescription
from everflow.kafka.errors import RefusedError, classify
from everflow.observe.http_server import HttpServer
from everflow.records import TopicPartition

NOW_MS = 1_800_000_000_000
ORDERS = [TopicPartition("orders", n) for n in range(2)]
PAYMENTS = TopicPartition("payments", 0)
STATIC = MemberDescription(member_id="m-1", client_id="shop-1", host="/10.0.0.7", instance_id="one")


def plan(**changed: object) -> Plan:
    given: dict[str, object] = {
        "application_id": "shop",
        "servers": "localhost:9092",
        "position": Position("earliest"),
        "chosen": ("orders",),
        "members": (),
        "transactions": (),
        "folder": None,
        "stores": 0,
        "existing": {"orders": 2, "shop-counts-changelog": 2},
        "needed": {"shop-counts-changelog": 2, "shop-by-item-repartition": 2},
        "repartition": frozenset({"shop-by-item-repartition"}),
        "others": (),
        "committed": {},
        "offsets": dict.fromkeys(ORDERS, 0),
    }
    return Plan(**{**given, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        ("2026-11-26T08:00:00Z", Position("time", 1_795_680_000_000)),
        ("2026-11-26T08:00:00", Position("time", 1_795_680_000_000)),
        ("2026-11-26T09:00:00+01:00", Position("time", 1_795_680_000_000)),
        ("2026-11-26", Position("time", 1_795_651_200_000)),
        ("PT12H", Position("time", NOW_MS - 12 * 3_600_000)),
        ("P1DT6H", Position("time", NOW_MS - 30 * 3_600_000)),
        ("P100000D", Position("time", 1)),
    ],
)
def test_inputs_begin_where_it_is_said(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


@pytest.mark.parametrize("text", ["yesterday", "", "12h", "P", "PT", "2026-13-01", "-PT1H"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="earliest"):
        parse_position(text, NOW_MS)


def test_a_time_to_come_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"future.*--to"):
        parse_position("2999-01-01", NOW_MS)


def test_topics_are_those_that_the_program_reads() -> None:
    inputs = ["orders", "payments"]
    assert chosen_topics([], inputs, {"prices"}) == ("orders", "payments")
    assert chosen_topics(["payments, orders", "orders"], inputs, ()) == ("payments", "orders")
    with pytest.raises(ConfigError, match="orders, payments"):
        chosen_topics(["orders,nobody"], inputs, ())
    with pytest.raises(ConfigError, match=r"global.*beginning"):
        chosen_topics(["prices"], inputs, {"prices"})
    with pytest.raises(ConfigError, match="names no topic"):
        chosen_topics([","], inputs, ())


def test_sinks_keep_their_rows_and_positions_and_it_says_so() -> None:
    chosen = plan(sinks=("lake",))
    (line,) = [one for one in chosen.lines() if "lake" in one]
    assert line.split()[0] == "leave"
    assert chosen.plain(dry_run=True, done=False)["sinks"] == ["lake"]


def test_topics_of_an_earlier_program_go_and_those_of_others_stay() -> None:
    existing = dict.fromkeys(
        [
            "orders",
            "shop-orders",
            "shop-counts-changelog",
            "shop-read-changelog",
            "shop-old-repartition",
            "shop-fk-subscription-response-topic",
            "shop-eu-counts-changelog",
            "shop-eu-west-counts-changelog",
            "shopping-counts-changelog",
        ],
        1,
    )
    used = {"orders", "shop-counts-changelog", "shop-read-changelog"}
    groups = {"shop", "shop-eu", "shop-eu-west", "shopping"}
    found = {one.topic: one.group for one in leftovers("shop", existing, used, groups)}
    assert found == {
        "shop-old-repartition": "",
        "shop-fk-subscription-response-topic": "",
        "shop-eu-counts-changelog": "shop-eu",
        "shop-eu-west-counts-changelog": "shop-eu-west",
    }
    others = tuple(leftovers("shop", existing, used, groups))
    chosen = plan(others=others, existing=existing)
    assert set(chosen.deleted) == {
        "shop-counts-changelog",
        "shop-old-repartition",
        "shop-fk-subscription-response-topic",
    }


def test_inputs_that_were_not_named_keep_their_offsets_and_nothing_beside_them() -> None:
    committed = {ORDERS[0]: 7, ORDERS[1]: 8, PAYMENTS: 9}
    starts = dict.fromkeys(ORDERS, 2)
    assert new_offsets({"orders"}, starts, committed) == {**starts, PAYMENTS: 9}
    assert new_offsets({"orders"}, starts, {}) == starts


def test_the_plan_is_shown_in_the_order_of_its_steps() -> None:
    others = tuple(
        leftovers("shop", {"shop-old-changelog": 1, "shop-eu-x-changelog": 1}, (), {"shop-eu"})
    )
    shown = plan(
        members=(STATIC,),
        transactions=("shop-1-0",),
        folder="/state/shop",
        stores=1,
        others=others,
        committed={ORDERS[0]: 1_500, PAYMENTS: 3},
        offsets={ORDERS[0]: 0, ORDERS[1]: 0, PAYMENTS: 3},
    )
    *lines, old = shown.lines()
    assert lines == [
        "reset of shop at localhost:9092, inputs to earliest",
        "  member  shop-1 at 10.0.0.7, group.instance.id one",
        "  fence   transactional id shop-1-0",
        "  delete  folder /state/shop, 1 store",
        "  delete  topic shop-counts-changelog, 2 partitions",
        "  delete  topic shop-old-changelog, 1 partition (old)",
        "  commit  orders-0: 1,500 -> 0",
        "  commit  orders-1: none -> 0",
        "  commit  payments-0: 3 -> 3 (kept)",
        "  create  topic shop-by-item-repartition, 2 partitions",
        "  create  topic shop-counts-changelog, 2 partitions",
        "  leave   topic shop-eu-x-changelog, of group shop-eu",
    ]
    assert old.startswith("(old): ")
    told = shown.plain(dry_run=True, done=False)
    assert (told["dry_run"], told["done"], told["state_folder"]) == (True, False, "/state/shop")
    assert told["members"][0]["group_instance_id"] == "one"
    assert told["offsets"][1] == {"topic": "orders", "partition": 1, "committed": None, "offset": 0}


def test_an_application_that_left_nothing_has_nothing_to_reset() -> None:
    assert plan(existing={"orders": 2}).untouched
    assert not plan().untouched
    assert not plan(existing={}, folder="/state/shop").untouched
    assert not plan(existing={}, committed={PAYMENTS: 0}).untouched


def test_members_are_named_with_what_to_do() -> None:
    text = still_running("shop", [STATIC], 45_000)
    assert "has members: shop-1 at 10.0.0.7, group.instance.id one" in text
    assert "session.timeout.ms, 45 s here" in text
    assert "--force takes members" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--application-id is missing"),
        (["--application-id", "shop"], "--bootstrap-servers is missing"),
        (["--application-id", "shop", "--bootstrap-servers", "x:1", "--to", "soon"], "--to 'soon'"),
        (["--set", "securty.protocol=SSL"], "'securty.protocol'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVERFLOW_BOOTSTRAP_SERVERS", raising=False)
    if arguments[:1] == ["--set"]:
        arguments = ["--application-id", "shop", "--bootstrap-servers", "x:1", *arguments]
    done = CliRunner().invoke(app, ["reset", "program:builder", *arguments])
    assert done.exit_code == 2
    assert says in done.output


def test_where_no_broker_answers_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("everflow.cli.commands.REACH_S", 0.5)
    (tmp_path / "reset_program.py").write_text(
        "from everflow import StreamsBuilder\nbuilder = StreamsBuilder()\n"
        "builder.stream('orders').to('out')\n"
    )
    options = ["--application-id", "shop", "--bootstrap-servers", "127.0.0.1:1", "--yes"]
    done = CliRunner().invoke(app, ["reset", "reset_program:builder", *options])
    assert done.exit_code == 1
    assert "broker answered at 127.0.0.1:1" in done.output


@pytest.mark.parametrize(
    ("code", "shown", "says"),
    [
        (30, "EF-FATAL", "GROUP_AUTHORIZATION_FAILED"),
        (25, "EF-STILL-RUNNING", "Somebody joined"),
        (27, "EF-STILL-RUNNING", r"until.*ended"),
    ],
)
def test_offsets_that_may_not_be_set_are_said_at_once(code: int, shown: str, says: str) -> None:
    class Refusing:
        def commit_offsets(self, *_: object) -> None:
            raise classify(RefusedError(code), "committing")

    builder = StreamsBuilder()
    builder.stream("orders").to("out")
    reset = cluster_reset.ClusterReset(
        topology=builder.build(),
        config=StreamsConfig(**{"application.id": "shop", "bootstrap.servers": "x:1"}),
        admin=cast(ClusterAdmin, Refusing()),
        status=StatusLine(Console(quiet=True)),
    )
    with pytest.raises(FatalError, match=says) as refused:
        reset._commit(dict.fromkeys(ORDERS, 0))
    assert refused.value.code == shown


# Which pods go for good, and what is asked of the API server.


def stateful_set(replicas: int, **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("pod", "seen", "gone"),
    [
        ("orders-2", stateful_set(3), False),
        ("orders-2", stateful_set(2), True),
        ("orders-0", stateful_set(0), True),
        ("orders-0", stateful_set(3, deletionTimestamp="2026-01-01T00:00:00Z"), True),
        ("orders-0", None, True),
        ("my-orders-10", stateful_set(11), False),
        ("orders-5", {"metadata": {}, "spec": {"replicas": 2, "ordinals": {"start": 4}}}, False),
        ("orders-6", {"metadata": {}, "spec": {"replicas": 2, "ordinals": {"start": 4}}}, True),
        ("orders-1", {"metadata": {}, "spec": {}}, True),
    ],
)
def test_who_goes_for_good(pod: str, seen: dict[str, Any] | None, gone: bool) -> None:
    assert goes_for_good(pod, seen) is gone


@contextmanager
def api_server(folder: Path, code: int, body: Any) -> Iterator[tuple[dict[str, str], list[str]]]:
    """One that answers everything so; the environment of a pod, and what was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Authorization']}")
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("shop")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = str(server.server_address[1])
    yield ({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, asked)
    server.shutdown()
    server.server_close()


def test_the_api_server_is_asked_with_the_pods_token(tmp_path: Path) -> None:
    with api_server(tmp_path, 200, stateful_set(2)) as (environment, asked):
        assert read_stateful_set("orders", environment, tmp_path) == stateful_set(2)
    assert asked == ["/apis/apps/v1/namespaces/shop/statefulsets/orders Bearer secret"]


def test_a_set_that_is_gone_and_one_that_may_not_be_read(tmp_path: Path) -> None:
    with api_server(tmp_path, 404, {}) as (environment, _):
        assert read_stateful_set("orders", environment, tmp_path) is None
    with (
        api_server(tmp_path, 403, {}) as (environment, _),
        pytest.raises(RetriableError, match="HTTP 403"),
    ):
        read_stateful_set("orders", environment, tmp_path)


def test_a_nodes_zone_becomes_settings(tmp_path: Path) -> None:
    node = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
    folder = tmp_path / "settings"
    with api_server(tmp_path, 200, node) as (environment, asked):
        zone = "topology.kubernetes.io/zone"
        assert write_rack("n1", zone, folder, environment, tmp_path) == "b"
        with pytest.raises(FatalError, match=r"n1.*\bother\b"):
            write_rack("n1", "other", folder, environment, tmp_path)
    assert asked[0] == "/api/v1/nodes/n1 Bearer secret"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "client.rack": "b",
        "client.tag.zone": "b",
    }


def test_where_nothing_can_be_found_out_the_pod_comes_back() -> None:
    assert returns("orders", {})
    nobody = {
        "HOSTNAME": "orders-0",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
    }
    assert returns("orders", nobody)


def test_nobody_to_drain_is_told() -> None:
    with pytest.raises(RetriableError, match=r"answered at 127.0.0.1:1 \(Connection refused\)"):
        drained("127.0.0.1:1", 1)
    with pytest.raises(ConfigError, match="names no port"):
        drained("127.0.0.1", 1)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_proxies_are_not_asked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pod that has one in its environment would stay silent at a scale-in, too."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with api_server(tmp_path, 200, stateful_set(2)) as (environment, _):
        assert read_stateful_set("orders", environment, tmp_path) == stateful_set(2)


@contextmanager
def draining(*looks: dict[str, Any] | None) -> Iterator[tuple[str, list[str]]]:
    """An instance that says one after the other of itself, the last one again and again; None: it
    is too busy to answer. Behind an empty one nobody is there. Its address, and what was asked."""
    asked: list[str] = []
    left = list(looks)
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.answer({}, 202)

        def do_GET(self) -> None:
            look = left.pop(0) if len(left) > 1 else left[0]
            if look is None:
                over.wait()
            elif look:
                self.answer(look, 200)
            else:
                server.socket.close()

        def answer(self, content: Any, code: int) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", asked
    over.set()
    server.shutdown()
    server.server_close()


def status(active: int, state: str = "RUNNING", error: str = "") -> dict[str, Any]:
    standby = {"role": "standby"}
    return {"state": state, "error": error, "tasks": [{"role": "active"}] * active + [standby]}


def test_a_drain_says_how_far_it_is_until_nobody_answers() -> None:
    said: list[str] = []
    looks = [status(2), status(1), status(0), status(0, "PENDING_SHUTDOWN"), {}]
    with draining(*looks) as (address, asked):
        assert drained(address, 60, said.append) == 0
    assert asked == ["/drain"]
    assert [line.partition(" active")[0] for line in said[:2]] == [
        "migrating tasks: 2",
        "migrating tasks: 1",
    ]
    assert [line.partition(":")[0] for line in said[2:]] == ["all tasks migrated"] * 2


def test_tasks_that_were_not_handed_over_are_told() -> None:
    with draining(status(2), status(1, "PENDING_SHUTDOWN"), {}) as (address, _):
        done = CliRunner().invoke(app, ["drain", address])
    assert done.exit_code == 0, done.output
    assert "1 active task had not" in done.stdout


def test_a_busy_instance_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pod would be killed while it hands over, and the hook would say that all went well."""
    monkeypatch.setattr(watch, "ANSWER_S", 0.2)
    said: list[str] = []
    with draining(None, None, status(0, "NOT_RUNNING")) as (address, _):
        drained(address, 60, said.append)
    assert [line.partition(" ")[0] for line in said] == ["waiting"] * 2


def test_a_drain_that_ends_with_an_error_is_no_drain() -> None:
    with (
        draining(status(1), status(1, "ERROR", "[EF-FATAL] a disk is full")) as (address, _),
        pytest.raises(FatalError, match=r"ended.*\[EF-FATAL\]"),
    ):
        drained(address, 60)


def test_one_that_does_not_end_in_time_is_told() -> None:
    with draining(status(1)) as (address, _), pytest.raises(RetriableError, match=r"runs.*1\.5"):
        drained(address, 1.5)


def test_what_does_not_drain_says_why() -> None:
    server = HttpServer("127.0.0.1:0", Starlette())
    try:
        with pytest.raises(ConfigError, match=r"drain.*Found.*404"):
            drained(server.address, 1)
    finally:
        server.close()


# `everflow simulate`.


SMALL = ("simulate", "--members", "2", "--tasks", "6", "--state-records", "50000")


def test_it_shows_the_rounds_and_writes_json_and_history(tmp_path: Path) -> None:
    result, history = tmp_path / "out.json", tmp_path / "history.txt"
    done = CliRunner().invoke(
        app, [*SMALL, "--add", "1", "--json", str(result), "--history", str(history)]
    )
    assert done.exit_code == 0, done.output
    for word in ("moves", "rebalances", "paused", "balanced", "warm-ups"):
        assert word in done.output
    assert any(
        line.startswith("2 instances") and len(line) > 80 for line in done.output.splitlines()
    ), "prose is wrapped"
    written = json.loads(result.read_text())
    assert written["step"]["members"] == 2
    assert written["moves"] == 2
    assert len(written["rounds"]) == written["rebalances"]
    assert "i3" in history.read_text()


def measured(file: Path, **rates: float) -> Path:
    """What `./run bench restore --json` writes."""
    rows = [
        {"bench": "restore", "system": "everflow", "metric": metric, "value": value}
        for metric, value in rates.items()
    ]
    file.write_text(
        json.dumps(
            {"rows": [*({**row, "system": "kafka-streams", "value": 1.0} for row in rows), *rows]}
        )
    )
    return file


def test_both_rates_may_come_from_a_bench(tmp_path: Path) -> None:
    file = measured(tmp_path / "restore.json", restore=3_123_456.0, follow=654_321.0)
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--measured", str(file)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Restoring 3,123,456 records/s" in said
    assert "warming up 654,321 records/s" in said


def test_warm_ups_take_the_time_of_their_own_rate(tmp_path: Path) -> None:
    """A new instance's tasks are warmed up, at a rate that is not that of active ones."""
    balanced = {}
    for name, restore, follow in (
        ("even", 20_000, 20_000),
        ("restore", 2_000_000, 20_000),
        ("follow", 20_000, 2_000_000),
    ):
        result = tmp_path / f"{name}.json"
        rates = ["--restore-rate", str(restore), "--follow-rate", str(follow)]
        done = CliRunner().invoke(
            app, [*SMALL, "--state-records", "400000", "--add", "1", *rates, "--json", str(result)]
        )
        assert done.exit_code == 0, done.output
        balanced[name] = json.loads(result.read_text())["balanced_after_s"]
    assert balanced["follow"] < balanced["even"] / 2, balanced
    assert balanced["restore"] > balanced["even"] / 2, balanced


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--add, --remove or --crash"),
        (("--crash", "2"), "Nobody"),
        (("--add", "1", "--restore-rate", "5", "--measured", "x"), "give one"),
        (("--add", "1", "--follow-rate", "5", "--measured", "x"), "give one"),
        (("--add", "1", "--follow-rate", "0"), "--follow-rate"),
        (("--add", "1", "--measured", "missing.json"), "run bench restore"),
        (("--add", "1", "--json", "no/such/folder/x.json"), "does not exist"),
        (("--add", "1", "--json", "/"), "is a folder"),
        (("--add", "1", "--history", "/"), "is a folder"),
        (("--add", "1", "--restore-rate", "nan"), "--restore-rate nan"),
        (("--add", "1", "--restore-rate", "inf"), "--restore-rate inf"),
        (("--add", "1", "--follow-rate", "nan"), "--follow-rate nan"),
        (("--add", "1", "--input-rate", "nan"), "--input-rate nan: must be from 0 to 1,000,000"),
        (("--add", "1", "--input-rate", "-5"), "--input-rate -5"),
        (("--add", "1", "--session-timeout", "nan"), "--session-timeout nan"),
        (("--add", "1", "--session-timeout", "0.5"), "--session-timeout 0.5: must be from 1 to"),
        (("--add", "1", "--state-records", "9" * 23), "--state-records 99,999"),
        (("--add", "1", "--state-records", "1" + "0" * 13), "takes 289.4 days"),
    ],
)
def test_wrong_values_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, [*SMALL, *arguments])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert "EF-CONFIG" in done.output


def test_a_file_without_a_rate_of_warm_ups_is_refused(tmp_path: Path) -> None:
    file = measured(tmp_path / "restore.json", restore=3_000_000.0)
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--measured", str(file)])
    assert done.exit_code == 2
    assert "no follow rate" in " ".join(done.output.split())

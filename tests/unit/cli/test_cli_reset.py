"""`everflow reset`: what its plan says, and what it refuses before it asks a broker."""

from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everflow import StreamsBuilder, StreamsConfig
from everflow.cli import cluster_reset
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
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, FatalError
from everflow.kafka.admin import ClusterAdmin, MemberDescription
from everflow.kafka.errors import RefusedError, classify
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
    assert shown.lines() == [
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
        "(old): named like internal topics of this application, not this program's",
    ]
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
    assert "--force takes members out at once" in text


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
    assert "no Kafka broker answered at 127.0.0.1:1" in done.output


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

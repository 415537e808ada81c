"""What the page gets of an instance: rates between looks, and the lines since it is watched."""

import logging
import ssl
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from everflow import StreamsBuilder
from everflow import metrics as names
from everflow.assignment.user_data import digest
from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError, RetriableError
from everflow.instance.client_state import ClientState
from everflow.instance.describe import TaskStatus
from everflow.instance.observer import (
    WATCHED_MS,
    BrokerFacts,
    BusyShares,
    Observer,
    Standing,
    other_instances_of,
    standing,
    subject_of,
)
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.kafka.admin import TransactionState
from everflow.logs import rebalance_log
from everflow.metrics import LEFT_OUT, Metrics
from everflow.observe.desired_instances import ScalingRules
from everflow.observe.observation import Observation
from everflow.observe.page.other_instances import StatusClient
from everflow.observe.page.view import page_view
from everflow.records import TaskId, TopicPartition
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut
from unit.manual_clock import ManualClock

RESTORING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=25, rate=5.0, remaining_s=5.0, copied=75
)


class Looked:
    """An instance that has begun; the test says what it has consumed."""

    config = StreamsConfig(application_id="a", bootstrap_servers="b:1")
    state = ClientState.REBALANCING
    error: EverflowError | None = None
    consumed = 0.0
    task = RESTORING

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        return {TaskId(0, 1): self.task}

    def metrics(self) -> dict[str, float | str]:
        return {names.RECORDS_CONSUMED: self.consumed, names.CLIENT_STATE: "REBALANCING"}


@pytest.fixture
def looked() -> Looked:
    return Looked()


@pytest.fixture
def observer(looked: Looked) -> Observer:
    return Observer(
        streams=looked,
        instance=lambda: None,
        raw=Metrics(),
        clock=ManualClock(1_000_000),
        subject=Observation(
            application_id="a",
            client_id="a-1",
            version="1",
            state="",
            state_number=0,
            threads=(),
            tasks=(),
        ),
        rules=ScalingRules(drain_s=33.0),
    )


def advance(observer: Observer, milliseconds: float) -> None:
    assert isinstance(observer.clock, ManualClock)
    observer.clock.advance(milliseconds)


def test_a_page_that_is_opened_in_the_first_second_has_facts(observer: Observer) -> None:
    facts = observer.facts()
    assert facts.before == facts.now
    assert facts.total_growth(names.RECORDS_CONSUMED) == 0.0
    assert facts.drain_goal_s == 33.0
    (task,) = facts.seen.tasks
    assert (task.task, task.state, task.copied, task.lag) == ("0_1", "RESTORING", 75, 25)


def test_rates_and_spans_are_between_its_thread_s_looks(observer: Observer, looked: Looked) -> None:
    observer.sample()
    advance(observer, 5_000)
    looked.consumed = 500.0
    observer.sample()
    advance(observer, 5_000)
    looked.consumed = 1_000.0
    facts = observer.facts()
    assert facts.total_growth(names.RECORDS_CONSUMED) == 100.0
    assert [(span.since_ms, span.kind) for span in facts.spans["0_1"]] == [(1_000_000, "restoring")]
    assert facts.now_ms == 1_010_000


def test_an_active_task_has_the_rate_of_its_processing(observer: Observer, looked: Looked) -> None:
    """For `/status`, `everflow tasks` and the pages of other instances, which know no counters."""
    looked.task = replace(RESTORING, state=TaskState.RUNNING, lag=3_000, rate=0.0, remaining_s=0.0)
    observer.sample()
    advance(observer, 5_000)
    observer.raw.add_series(names.PROCESSED, {("0", "0_1", "in"): 500.0})
    looked.task = replace(looked.task, lag=2_000)
    (task,) = observer.status()["tasks"]
    assert (task["rate"], task["remaining_s"]) == (100.0, 10.0)
    (row,) = page_view(observer.facts())["tasks"]["rows"]
    assert (row["rate"], row["remaining_s"]) == (100.0, 10.0)


def test_samples_of_what_failed_are_looked_at(observer: Observer) -> None:
    observer.raw.note(LEFT_OUT, {("E", "n", "t"): "t-0@1 (E: bad)"})
    assert observer.observe().samples == {("E", "n", "t"): "t-0@1 (E: bad)"}


def test_it_says_what_is_left_of_the_disk(observer: Observer, tmp_path: Path) -> None:
    assert observer.status()["disk"] is None
    advance(observer, 1_000)
    observer.folder = tmp_path / "not-made-yet"
    assert observer.status()["disk"] is None
    advance(observer, 1_000)
    observer.folder = tmp_path
    told = observer.status()["disk"]
    assert 0 < told["free"] < told["bytes"]


def test_lines_are_kept_while_it_runs(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_log, "level", logging.INFO)
    rebalance_log.manager._clear_cache()  # type: ignore[attr-defined]
    rebalance_log.info("before")
    observer.start()
    rebalance_log.info("meanwhile")
    observer.stop()
    rebalance_log.info("after")
    rebalance_log.manager._clear_cache()  # type: ignore[attr-defined]
    assert [event.text for event in observer.facts().events] == ["meanwhile"]


# What the brokers and other instances are asked, and what an instance tells of itself.

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Brokers:
    """They know the ends, and the state of one id."""

    def __init__(self) -> None:
        self.ends, self.stables = {A: 10}, {A: 4}
        self.told: dict[str, TransactionState] = {"app-0": TransactionState("Ongoing", 1_000)}
        self.refuses = 0
        self.asked: list[str] = []

    def known_ends(
        self, asked: Collection[TopicPartition], isolation: str
    ) -> Mapping[TopicPartition, int]:
        written = isolation == "read_uncommitted"
        self.asked.append("written" if written else "stable")
        return {tp: (self.ends if written else self.stables)[tp] for tp in asked}

    def transactions(self, ids: Collection[str]) -> Mapping[str, TransactionState]:
        self.asked.append("states")
        if self.refuses:
            raise RetriableError("away")
        return {name: self.told[name] for name in ids if name in self.told}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5_000)


@pytest.fixture
def known(brokers: Brokers, clock: ManualClock) -> BrokerFacts:
    return BrokerFacts(
        known_ends=brokers.known_ends,
        transactions=brokers.transactions,
        inputs=lambda: [A],
        ids=lambda: {"app-0": 0},
        clock=clock,
    )


def test_an_offset_that_stands_while_records_wait_behind_it_has_an_age() -> None:
    first = standing({}, {A: 10, B: 5}, {A: 4, B: 5}, 1_000)
    assert first == {A: Standing(4, 6, 1_000), B: Standing(5, 0, 1_000)}
    second = standing(first, {A: 30, B: 9}, {A: 4, B: 5}, 6_000)
    assert second[A] == Standing(4, 26, 1_000)
    assert second[B] == Standing(5, 4, 6_000), "nothing was held back before"
    assert standing(second, {A: 40}, {A: 31}, 9_000) == {A: Standing(31, 9, 9_000)}


def test_what_came_between_the_two_questions_is_not_held_back() -> None:
    assert standing({}, {A: 10}, {A: 12}, 0)[A].records == 0


def test_a_partition_whose_leader_is_silent_is_left_out() -> None:
    assert standing({}, {A: 10, B: 1}, {A: 10}, 0).keys() == {A}


def test_where_the_log_ends_is_asked_for_first(known: BrokerFacts, brokers: Brokers) -> None:
    known.ask()
    assert brokers.asked == ["written", "stable", "states"]


def test_a_transaction_has_an_age(known: BrokerFacts, brokers: Brokers, clock: ManualClock) -> None:
    (writer,) = known.writers()
    assert (writer.state, writer.open_s) == (None, None), "nobody has asked"
    known.ask()
    (writer,) = known.writers()
    assert (writer.transactional_id, writer.state, writer.open_s) == ("app-0", "Ongoing", 4.0)
    brokers.told = {"app-0": TransactionState("Empty")}
    known.ask()
    assert known.writers()[0].open_s == 0
    brokers.told = {"app-0": TransactionState("Ongoing", 9_000)}
    known.ask()
    assert known.writers()[0].open_s == 0, "a broker whose clock is ahead"


def test_a_transaction_is_open_for_as_long_as_it_was_when_it_was_asked_for(
    known: BrokerFacts, brokers: Brokers, clock: ManualClock
) -> None:
    """It has mostly ended since: a batch takes milliseconds, and the next question comes in 5 s."""
    brokers.told = {"app-0": TransactionState("Ongoing", 4_900)}
    known.ask()
    clock.advance(2_200)
    (writer,) = known.writers()
    assert (writer.open_s, known.age_s(clock.monotonic_ms())) == (0.1, 2.2)
    brokers.refuses = 1
    with pytest.raises(RetriableError):
        known.ask()
    assert known.writers()[0].open_s == 0.1, "nothing new was told"


def test_the_last_answer_holds(known: BrokerFacts, brokers: Brokers, clock: ManualClock) -> None:
    known.ask()
    clock.advance(8_000)
    known.ask()
    brokers.refuses = 1
    brokers.ends = {}
    clock.advance(30_000)
    with pytest.raises(KeyError):
        known.ask()
    now_ms = clock.monotonic_ms()
    assert known.age_s(now_ms) == 30.0
    assert known.stable_lags()["a", 0] == (6, 4, 8.0), "it may have moved since"


def test_brokers_that_do_not_tell_states_tell_offsets(known: BrokerFacts, brokers: Brokers) -> None:
    brokers.refuses = 1
    with pytest.raises(RetriableError):
        known.ask()
    assert known.stable_lags()["a", 0].records == 6
    assert known.age_s(5_000) == 0.0


class Turns(threading.Event):
    """A stop that comes after so many turns; between them time passes."""

    def __init__(self, clock: ManualClock, turns: int, each_ms: float) -> None:
        super().__init__()
        self.clock, self.left, self.each_ms = clock, turns, each_ms

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        self.clock.advance(self.each_ms)
        return self.left < 0


def test_nobody_looks_nobody_asks(known: BrokerFacts, brokers: Brokers, clock: ManualClock) -> None:
    known.run(Turns(clock, 20, 5_000))
    assert brokers.asked == []
    known.watched()
    known.run(Turns(clock, 20, 5_000))
    assert brokers.asked.count("written") == WATCHED_MS / 5_000


def test_a_thread_in_a_batch_that_has_not_ended_is_busy() -> None:
    shares = BusyShares()
    for at in range(0, 45_000, 5_000):
        shares.note(at, {0: 0.0, 1: 0.0}, {0: 0.0, 1: None})
    assert (shares.of(0), shares.of(1)) == (1.0, 0.0)


def test_a_first_batch_of_which_no_figure_tells_is_one_too() -> None:
    shares = BusyShares()
    for at in (0, 5_000, 10_000):
        shares.note(at, {}, {0: 5_000.0})
    assert shares.of(0) == pytest.approx(0.5)


def test_its_end_is_counted_once() -> None:
    shares = BusyShares()
    shares.note(0, {0: 0.0}, {0: 0.0})
    shares.note(20_000, {0: 20.0}, {0: 0.0})  # it ends while one looks: it is in both
    shares.note(25_000, {0: 20.0}, {0: None})
    shares.note(40_000, {0: 20.0}, {0: None})
    assert shares.of(0) == pytest.approx(0.5)


def test_what_is_older_than_half_a_minute_is_forgotten() -> None:
    shares = BusyShares()
    for at in range(0, 100_000, 5_000):
        shares.note(at, {0: min(at, 20_000) / 1000}, {0: None})
    assert shares.of(0) == 0.0


def asks(**settings: Any) -> StatusClient:
    config = StreamsConfig(application_id="orders", bootstrap_servers="b:1", **settings)
    found = other_instances_of(
        config, settings.pop("tokens", ["first", "second"]), lambda: "a:1"
    ).ask
    assert isinstance(found, StatusClient)
    return found


def test_the_first_token_is_sent_as_all_instances_know_it() -> None:
    client = asks()
    assert (client.application_id, client.token, client.tls) == ("orders", "first", None)


def test_instances_that_speak_https_are_asked_so(tmp_path: Path) -> None:
    authority = tmp_path / "ca"
    trustme.CA().cert_pem.write_to_path(str(authority))
    own = {"query_ssl_certificate_location": "c", "query_ssl_key_location": "k"}
    for settings in (own, {**own, "query_ssl_ca_location": str(authority)}):
        tls = asks(**settings).tls
        assert tls is not None
        assert tls.verify_mode is ssl.CERT_REQUIRED
        assert tls.check_hostname
    assert len(asks(**own, query_ssl_ca_location=str(authority)).tls.get_ca_certs()) == 1  # type: ignore[union-attr]


def test_an_authority_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    own = {"query_ssl_certificate_location": "c", "query_ssl_key_location": "k"}
    with pytest.raises(ConfigError, match=r"query\.ssl\.ca\.location"):
        asks(**own, query_ssl_ca_location=str(tmp_path / "none"))


def test_the_program_is_named_by_its_first_line_without_a_home() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    topology = builder.build()
    config = StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1"})
    found = subject_of(config, topology, "p", 7)
    file, _, line = found.program.rpartition(":")
    assert file.endswith(Path(__file__).name)
    assert not file.startswith("/")
    assert line.isdigit()
    assert (found.topology, found.started_ms) == ("", 7), "the group's digits come with the cluster"
    assert len(digest(fingerprint(cut(topology)))) == 16

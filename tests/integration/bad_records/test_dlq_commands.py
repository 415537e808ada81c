"""Dead letters on a broker, by the command and the page: listed, grouped, replayed once each."""

import base64
import json
import re
import time
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from everflow import StreamsConfig
from everflow.cli.app import app as command
from everflow.instance import observer
from everflow.instance.observer import DeadLetterTopic, dead_letters_of
from everflow.observe.page.routes import LetterCause
from integration.lifecycle.lifecycle_cluster import Cluster, Record

pytestmark = pytest.mark.broker


def letter(source: str, offset: int, value: bytes, error: str, node: str) -> Record:
    headers = {
        "__streams.errors.exception": error,
        "__streams.errors.message": f"{error}: went wrong",
        "__streams.errors.stacktrace": "Traceback: here",
        "__streams.errors.topic": source,
        "__streams.errors.partition": "1",
        "__streams.errors.offset": str(offset),
        "__everflow.errors.node": node,
    }
    own = (("own", b"header"),)
    made = tuple((name, text.encode()) for name, text in headers.items())
    return Record(f"k{offset}".encode(), value, 7_000 + offset, 0, own + made)


class Dlq:
    """The command on a topic of four letters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source, self.topic = cluster.topic("in", 2), cluster.topic("dead", 1)
        made = [
            letter(self.source, 3, b"v3", "ValueError", "parse"),
            letter(self.source, 4, b"v4", "ValueError", "parse"),
            letter(self.source, 9, b"v9", "KeyError", "look-up"),
        ]
        cluster.write(self.topic, made)

    def __call__(self, *arguments: str, answer: str = "y\n") -> Result:
        environment = {"EVERFLOW_BOOTSTRAP_SERVERS": self.cluster.bootstrap}
        return CliRunner().invoke(command, ["dlq", *arguments], input=answer, env=environment)


@pytest.fixture
def dlq(cluster: Cluster) -> Dlq:
    return Dlq(cluster)


def test_letters_are_listed_filtered_shown_and_grouped(dlq: Dlq) -> None:
    listed = dlq("list", dlq.topic)
    assert listed.exit_code == 0, listed.output
    lines = listed.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0@0", "0@1", "0@2"]
    assert lines[2].split("\t")[2:] == [f"{dlq.source}-1@9", "look-up", "KeyError: went wrong"]
    assert len(dlq("list", dlq.topic, "--error", "KeyError").stdout.splitlines()) == 1
    assert len(dlq("list", dlq.topic, "--node", "parse").stdout.splitlines()) == 2
    for command_name in ("list", "group"):
        none = dlq(command_name, dlq.topic, "--from", "elsewhere")
        assert (none.exit_code, none.stdout) == (0, "")
        assert f"none of the 3 dead letters in {dlq.topic} is asked for" in none.stderr
    empty = dlq("list", dlq.source)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert f"{dlq.source} holds no" in empty.stderr
    shown = dlq("show", dlq.topic, "0@1").stdout
    for part in (f"{dlq.source}-1@4", "b'v4'", "own=b'header'", "Traceback: here", "parse"):
        assert part in shown
    grouped = dlq("group", dlq.topic).stdout.splitlines()
    assert grouped[0].startswith("2 (2 not replayed)\tValueError\tparse\t")
    assert grouped[2].startswith("1 (1 not replayed)\tKeyError\tlook-up\t")
    assert dlq("show", dlq.topic, "0@77").exit_code == 2
    assert dlq("show", dlq.topic, "seven").exit_code == 2


def test_all_of_it_is_there_for_programs(dlq: Dlq) -> None:
    def told(*arguments: str) -> Any:
        return json.loads(dlq(*arguments, "--output", "json").stdout)

    listed = told("list", dlq.topic)
    assert [one["letter"] for one in listed] == ["0@0", "0@1", "0@2"]
    shown = told("show", dlq.topic, "0@1")
    assert shown == listed[1]
    assert shown["record"] == f"{dlq.source}-1@4"
    assert base64.b64decode(shown["value"]) == b"v4"
    assert shown["headers"] == [{"name": "own", "value": base64.b64encode(b"header").decode()}]
    assert (shown["exception"], shown["stacktrace"]) == ("ValueError", "Traceback: here")
    grouped = told("group", dlq.topic)
    assert [(one["letters"], one["not_replayed"], one["node"]) for one in grouped] == [
        (2, 2, "parse"),
        (1, 1, "look-up"),
    ]
    tried = told("replay", dlq.topic, "--dry-run", "--node", "parse")
    assert (tried["dry_run"], tried["replayed"]) == (True, ["0@0", "0@1"])
    assert told("replay", dlq.topic, "--node", "parse", "--yes") == tried | {"dry_run": False}
    again = told("replay", dlq.topic, "--node", "parse")
    assert (again["replayed"], again["replayed_before"]) == ([], ["0@0", "0@1"])
    assert told("list", dlq.topic, "--from", "elsewhere") == []


def test_each_letter_is_replayed_once(dlq: Dlq) -> None:
    tried = dlq("replay", dlq.topic, "--dry-run", "--error", "ValueError")
    assert "2 dead letters would" in tried.output
    assert dlq.cluster.read(dlq.source) == []
    done = dlq("replay", dlq.topic, "--error", "ValueError")
    assert done.exit_code == 0, done.output
    assert "2 dead letters replayed" in done.output
    again = dlq("replay", dlq.topic, "--error", "ValueError")
    assert "0 dead letters replayed" in again.output
    found = dlq.cluster.read(dlq.source)
    assert [(r.key, r.value, r.timestamp, r.partition) for r in found] == [
        (b"k3", b"v3", 7_003, 1),
        (b"k4", b"v4", 7_004, 1),
    ]
    assert found[0].headers == (
        ("own", b"header"),
        ("__everflow.replayed.from", f"{dlq.topic}-0@0".encode()),
    )
    rest = dlq("replay", dlq.topic)
    assert "1 dead letter replayed" in rest.output
    assert dlq("list", dlq.topic).stdout.count("(replayed)") == 3


def test_a_letter_that_is_not_there_is_not_replayed_in_silence(dlq: Dlq) -> None:
    done = dlq("replay", dlq.topic, "--letter", "0@1", "--letter", "0@77")
    assert done.exit_code == 2, done.output
    assert f"no dead letter 0@77 in {dlq.topic}" in done.output
    assert dlq.cluster.read(dlq.source) == [], "nor are the others"


def test_letters_are_replayed_into_another_topic(dlq: Dlq) -> None:
    other = dlq.cluster.topic("other", 1)
    done = dlq("replay", dlq.topic, "--to", other, "--letter", "0@2")
    assert done.exit_code == 0, done.output
    assert [record.value for record in dlq.cluster.read(other)] == [b"v9"]
    missing = dlq("replay", dlq.topic, "--to", "not-there-at-all")
    assert missing.exit_code == 2
    assert "no such topic: not-there-at-all" in missing.output


def test_records_without_the_headers_are_counted_and_not_listed(dlq: Dlq) -> None:
    plain = dlq.cluster.topic("plain", 1)
    dlq.cluster.write(plain, [Record(b"k", b"v"), Record(b"k", b"w")])
    for name in ("list", "group"):
        result = dlq(name, plain)
        assert result.exit_code == 0, result.output
        assert result.stdout == ""
        assert f"{plain} holds 2 records" in result.stderr
    assert "b'v'" in dlq("show", plain, "0@0").stdout
    dlq.cluster.write(dlq.topic, [Record(b"k", b"v")])
    mixed = dlq("list", dlq.topic)
    assert len(mixed.stdout.splitlines()) == 3
    assert f"{dlq.topic} holds a record" in mixed.stderr
    assert f"`everflow dlq show {dlq.topic} 0@3`" in mixed.stderr


def test_letters_without_a_source_are_left_out_unless_a_topic_is_named(dlq: Dlq) -> None:
    odd = letter(dlq.source, 5, b"v5", "ValueError", "parse")
    headers = tuple(
        (name, b"x" if name == "__streams.errors.partition" else data) for name, data in odd.headers
    )
    dlq.cluster.write(
        dlq.topic, [Record(b"k", b"plain"), odd._replace(headers=headers), Record(b"k", b"more")]
    )
    tried = dlq("replay", dlq.topic, "--dry-run")
    assert "4 dead letters would" in tried.output
    assert re.search(rf"2 .* left out, {dlq.topic}-0@3 ", tried.output)
    named = dlq("replay", dlq.topic, "--letter", "0@0", "--letter", "0@3")
    assert named.exit_code == 2
    assert f"dead letter {dlq.topic}-0@3 has no header __streams.errors.topic" in named.output
    assert f"`everflow dlq replay {dlq.topic} --letter 0@3 --to TOPIC`" in named.output
    assert dlq.cluster.read(dlq.source) == [], "nothing of what was named beside it"
    done = dlq("replay", dlq.topic)
    assert done.exit_code == 0, done.output
    assert "4 dead letters replayed" in done.output
    assert f"`everflow dlq replay {dlq.topic} --to TOPIC`" in done.output
    values = {record.value for record in dlq.cluster.read(dlq.source)}
    assert values == {b"v3", b"v4", b"v5", b"v9"}
    other = dlq.cluster.topic("other", 1)
    rest = dlq("replay", dlq.topic, "--to", other)
    assert "2 dead letters replayed" in rest.output
    assert [record.value for record in dlq.cluster.read(other)] == [b"plain", b"more"]
    assert "0 dead letters replayed" in dlq("replay", dlq.topic).output


@pytest.mark.parametrize("answer", ["n\n", "", "\n"], ids=["no", "nobody answers", "return"])
def test_nothing_is_replayed_without_a_yes(dlq: Dlq, answer: str) -> None:
    asked = dlq("replay", dlq.topic, "--error", "KeyError", answer=answer)
    assert asked.exit_code == 1
    assert f"Write 1 record into {dlq.source}?" in asked.stderr
    assert dlq.cluster.read(dlq.source) == []
    done = dlq("replay", dlq.topic, "--error", "KeyError", "--yes", answer="")
    assert (done.exit_code, "?" in done.output) == (0, False)
    assert [record.value for record in dlq.cluster.read(dlq.source)] == [b"v9"]
    again = dlq("replay", dlq.topic, "--error", "KeyError", answer="")
    assert again.exit_code == 0, "there is nothing to ask about"


def test_letters_that_are_older_than_the_topic_are_told_before(dlq: Dlq) -> None:
    tried = dlq("replay", dlq.topic, "--dry-run", "--output", "json")
    assert json.loads(tried.stdout)["late"] == 0
    assert "older" not in tried.stderr
    dlq.cluster.write(dlq.source, [Record(b"k", b"v", 90_000, 0), Record(b"k", b"v", 7_004, 1)])
    tried = dlq("replay", dlq.topic, "--dry-run", "--output", "json")
    assert json.loads(tried.stdout)["late"] == 1, "one of the same time is not late"
    done = dlq("replay", dlq.topic, answer="n\n")
    for part in ("1 of 3 dead letters", "1970-01-01T00:00:07.003Z", "1970-01-01T00:00:07.004Z"):
        assert part in done.stderr
    assert "--timestamp now" in done.stderr
    to_it = dlq("replay", dlq.topic, "--to", dlq.source, "--dry-run", "--output", "json")
    assert json.loads(to_it.stdout)["late"] == 1, "into the partition that it came from"
    other = dlq.cluster.topic("other", 2)
    dlq.cluster.write(other, [Record(b"k", b"v", 90_000, 0)])
    to_other = dlq("replay", dlq.topic, "--to", other, "--dry-run", "--output", "json")
    assert json.loads(to_other.stdout)["late"] == 3
    assert "dropped-records-total" in dlq("replay", dlq.topic).stderr


def test_a_letter_with_a_newer_record_of_its_key_is_told_and_may_be_skipped(dlq: Dlq) -> None:
    """Letters of the offsets 3, 4 and 9; k3 has a newer record, k4 one that is a letter itself."""
    keys = [b"k0", b"k1", b"k2", b"k3", b"k4", b"k5", b"k6", b"k7", b"k8", b"k4", b"k3", b"k11"]
    dlq.cluster.write(dlq.source, [Record(key, b"v", 7_000, 1) for key in keys])
    asked = ("replay", dlq.topic, "--dry-run", "--output", "json")
    tried = dlq(*asked)
    assert json.loads(tried.stdout)["newer_of_key"] == ["0@0"]
    assert "--latest-only" in tried.stderr
    assert f"{dlq.topic}-0@0" in tried.stderr
    assert len(json.loads(tried.stdout)["replayed"]) == 3
    other = dlq.cluster.topic("other", 2)
    assert json.loads(dlq(*asked, "--to", other).stdout)["newer_of_key"] == []
    done = dlq("replay", dlq.topic, "--latest-only")
    assert done.exit_code == 0, done.output
    written = [record.value for record in dlq.cluster.read(dlq.source)]
    assert sorted(one for one in written if one and one != b"v") == [b"v4", b"v9"]


def test_letters_can_get_the_present_time(dlq: Dlq) -> None:
    dlq.cluster.write(dlq.source, [Record(b"k", b"v", 90_000, 1)])
    before = int(time.time() * 1000)
    done = dlq("replay", dlq.topic, "--timestamp", "now")
    assert done.exit_code == 0, done.output
    assert "older" not in done.stderr
    times = [record.timestamp for record in dlq.cluster.read(dlq.source) if record.value != b"v"]
    assert len(times) == 3
    assert all(before <= at <= time.time() * 1000 for at in times)
    assert dlq("replay", dlq.topic, "--timestamp", "tomorrow").exit_code == 2


def desk_of(cluster: Cluster, topic: str) -> DeadLetterTopic:
    keys = {"application.id": "a", "bootstrap.servers": cluster.bootstrap}
    found = dead_letters_of(StreamsConfig({**keys, "errors.dead.letter.queue.topic.name": topic}))
    assert found is not None
    return found


def test_letters_are_replayed_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    dlq = Dlq(cluster)
    desk = desk_of(cluster, dlq.topic)
    values, lookup = desk.by_cause().causes
    assert values.cause == LetterCause("ValueError", "parse", dlq.source)
    assert (values.letters, values.open, lookup.open) == (2, 2, 1)
    assert "b'v4'" in values.sample
    with monkeypatch.context() as patched:
        patched.setattr(observer, "MOST_REPLAYED", 1)
        first = desk.replay(values.cause, None)
    assert (first.replayed, first.left, first.error) == (1, 1, "")
    assert desk.replay(values.cause, None).replayed == 1
    assert desk.replay(values.cause, None).replayed == 0
    assert [record.value for record in dlq.cluster.read(dlq.source)] == [b"v3", b"v4"]
    assert {one.cause.node: (one.letters, one.open) for one in desk.by_cause().causes} == {
        "parse": (2, 0),
        "look-up": (1, 1),
    }
    assert "1 dead letter replayed" in dlq("replay", dlq.topic).output, "of the other cause"


def test_letters_older_than_their_topic_are_counted_and_may_be_made_new(cluster: Cluster) -> None:
    dlq = Dlq(cluster)
    desk = desk_of(cluster, dlq.topic)
    assert [one.late for one in desk.by_cause().causes] == [0, 0]
    cluster.write(dlq.source, [Record(b"k", b"v", 90_000, 0), Record(b"k", b"v", 7_004, 1)])
    assert [one.late for one in desk.by_cause().causes] == [1, 0], (
        "one of the same time is not late"
    )
    assert desk.replay(desk.by_cause().causes[0].cause, 95_000).replayed == 2
    times = [one.timestamp for one in cluster.read(dlq.source)]
    assert sorted(times)[-2:] == [95_000, 95_000]
    assert {one.cause.node: one.late for one in desk.by_cause().causes} == {
        "parse": 0,
        "look-up": 1,
    }


def test_a_topic_that_is_gone_is_said_and_holds_nobody_up(cluster: Cluster) -> None:
    dead = cluster.topic("dead", 1)
    cluster.write(dead, [letter(f"{cluster.prefix}-gone", 0, b"v", "ValueError", "parse")])
    desk = desk_of(cluster, dead)
    done = desk.replay(desk.by_cause().causes[0].cause, None)
    assert (done.replayed, done.left) == (0, 1)
    assert f"topic {cluster.prefix}-gone, " in done.error
    assert desk.by_cause().causes[0].open == 1


def test_only_the_end_of_a_topic_is_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    dlq = Dlq(cluster)
    monkeypatch.setattr(observer, "MOST_READ", 1)
    found = desk_of(cluster, dlq.topic).by_cause()
    assert found.earlier > 0
    assert sum(one.letters for one in found.causes) <= 1


def test_a_topic_that_nobody_has_written_to_is_empty(cluster: Cluster) -> None:
    assert desk_of(cluster, f"{cluster.prefix}-never").by_cause().causes == []

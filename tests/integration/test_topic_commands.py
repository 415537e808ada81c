"""`everflow topic`, `produce` and `consume` on a broker, and what is said while none answers."""

import base64
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from everflow.cli import commands
from everflow.cli.app import app

pytestmark = pytest.mark.broker


def everflow(bootstrap: str, *arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(
        app, arguments, input=text, env={"EVERFLOW_BOOTSTRAP_SERVERS": bootstrap}
    )


def test_topics_are_created_listed_and_deleted(bootstrap: str, name: str) -> None:
    options = ["--partitions", "2", "--config", "cleanup.policy=compact"]
    made = everflow(bootstrap, "topic", "create", f"{name}-a", f"{name}-b:3", *options)
    assert (made.exit_code, made.stdout) == (
        0,
        f"created topic {name}-a, 2 partitions\ncreated topic {name}-b, 3 partitions\n",
    )
    wrote = everflow(bootstrap, "produce", f"{name}-b", text="k\t1\nl\t2\n")
    assert wrote.exit_code == 0, wrote.output
    listed = [line.split() for line in everflow(bootstrap, "topic", "list").stdout.splitlines()]
    assert [f"{name}-a", "2", "1", "0"] in listed
    assert [f"{name}-b", "3", "1", "2"] in listed
    told = json.loads(everflow(bootstrap, "topic", "list", "--output", "json").stdout)
    (row,) = (one for one in told if one["topic"] == f"{name}-b")
    assert (row["partitions"], row["replication_factor"], row["records"]) == (3, 1, 2)

    again = everflow(bootstrap, "topic", "create", f"{name}-c", f"{name}-a")
    assert again.exit_code == 2
    assert f"exists already: {name}-a (2 partitions). Nothing was created." in again.output

    missing = everflow(bootstrap, "topic", "delete", f"{name}-a", f"{name}-c", "--yes")
    assert missing.exit_code == 2
    assert f"no such topic: {name}-c. Nothing was deleted" in missing.output

    kept = everflow(bootstrap, "topic", "delete", f"{name}-b", text="n\n")
    assert kept.exit_code == 1
    assert f"Delete {name}-b (about 2 records)?" in kept.output
    gone = everflow(bootstrap, "topic", "delete", f"{name}-a", f"{name}-b", text="y\n")
    assert gone.exit_code == 0, gone.output
    assert name not in everflow(bootstrap, "topic", "list").stdout


def test_what_the_broker_refuses_is_said_in_its_words(bootstrap: str, name: str) -> None:
    wrong = {
        "--config=foo=bar": "Unknown topic config name: foo",
        "--replication-factor=3": "only 1 broker",
    }
    for option, says in wrong.items():
        refused = everflow(bootstrap, "topic", "create", name, option)
        assert refused.exit_code == 2
        assert f"the broker refused to create {name}: " in refused.output
        assert says in refused.output
        assert "start again" not in refused.output
        assert "Traceback" not in refused.output


def test_records_written_are_read_again(bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    wrote = everflow(bootstrap, "produce", name, "--value", "json", text='{"n": 1}\nk\t{"n": 2}\n')
    assert (wrote.exit_code, wrote.stderr) == (0, f"2 records written to {name}\n")
    read = everflow(
        bootstrap, "consume", name, "--value", "json", "--count", "2", "--timeout", "30"
    )
    assert (read.exit_code, read.stdout) == (0, 'null\t{"n": 1}\nk\t{"n": 2}\n')

    ended = ("--count", "2", "--timeout", "30", "--output", "json")
    told = everflow(bootstrap, "consume", name, "--value", "json", *ended).stdout.splitlines()
    first, second = map(json.loads, told)
    assert (first["key"], first["value"], first["headers"]) == (None, {"n": 1}, [])
    assert (second["key"], second["value"], second["topic"]) == ("k", {"n": 2}, name)
    assert second["timestamp"] > 0
    raw = everflow(bootstrap, "consume", name, "--value", "bytes", *ended).stdout.splitlines()
    assert base64.b64decode(json.loads(raw[1])["value"]) == b'{"n": 2}'

    fewer = everflow(bootstrap, "consume", name, "--count", "3", "--timeout", "0.5")
    assert fewer.exit_code == 1
    assert f"2 of 3 records of {name}" in fewer.stderr

    late = everflow(bootstrap, "consume", name, "--from-end", "--timeout", "0.5")
    assert (late.exit_code, late.stdout) == (0, "")


def test_bytes_of_another_kind_name_their_record(bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    everflow(bootstrap, "produce", name, text="abc\n")
    wrong = everflow(bootstrap, "consume", name, "--value", "long", "--timeout", "30")
    assert wrong.exit_code == 1
    assert f"the value of {name}-0@0 cannot be read: long takes 8 bytes, found 3" in wrong.output
    assert "--value bytes shows it as it is" in wrong.output


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_missing_topic_is_told_with_the_command(command: str, bootstrap: str, name: str) -> None:
    done = everflow(bootstrap, command, name, text="x\n")
    assert done.exit_code == 2
    assert f"no such topic: {name}. `everflow topic create {name}` creates it" in done.output


def test_an_absent_broker_is_waited_for_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REACH_S", 1.5)
    done = everflow("localhost:1", "topic", "list")
    assert done.exit_code == 1
    assert "waiting for Kafka at localhost:1 (for 1.5 s at most), 1 s" in done.stderr
    assert "no Kafka broker answered at localhost:1 within 1.5 s" in done.stderr
    assert "--bootstrap-servers (or EVERFLOW_BOOTSTRAP_SERVERS)" in done.stderr

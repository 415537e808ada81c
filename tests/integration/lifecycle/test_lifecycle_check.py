"""`everflow check` against an application on a real broker, and what its start refuses."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from everflow import StreamsBuilder, TimeWindows, Topology, serdes
from everflow.cli import app as commands
from everflow.errors import InternalTopicError, StoreLayoutError
from everflow.instance.query.queries import default_partitioner
from everflow.topology.compatibility import Effect, changes, effect_of
from everflow.topology.program_facts import facts_of
from everflow.topology.subtopologies import cut
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PROGRAM = """
from everflow import StreamsBuilder, serdes
builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
words = words{step}
words.repartition(name="again").group_by_key().count(store={store!r}).to_stream().to({output!r})
topology = builder.build()
"""
SAME = ".filter(lambda key, value: True)"
OTHER_STEP = ".filter(lambda key, value: len(value) < 1_000)"
OTHER_TYPE = ".map_values(lambda key, value: len(value), returns='bigint')"


@dataclass
class Programs:
    """Versions of one program, in files, and what the check says of each."""

    app: Application
    cluster: Cluster
    source: str = field(init=False)
    output: str = field(init=False)

    def __post_init__(self) -> None:
        self.source, self.output = self.cluster.topic("in"), self.cluster.topic("out")

    def text(self, step: str, store: str = "counts") -> str:
        return PROGRAM.format(source=self.source, output=self.output, step=step, store=store)

    def topology(self, step: str) -> Topology:
        names: dict[str, Any] = {}
        exec(self.text(step), names)
        topology: Topology = names["topology"]
        return topology

    def check(
        self, step: str, store: str = "counts", application: str = "", form: str = "json"
    ) -> Result:
        (self.app.folder / "changed.py").write_text(self.text(step, store))
        named = ["--application-id", application or self.app.id, "--output", form]
        asked = ["check", "changed.py:topology", *named]
        asked += ["--bootstrap-servers", self.cluster.bootstrap]
        return CliRunner().invoke(commands.app, asked)

    def changes(self, step: str, store: str = "counts") -> tuple[int, str, set[tuple[str, ...]]]:
        """Exit code, verdict, and what is graver than a rolling bounce."""
        result = self.check(step, store)
        data = json.loads(result.stdout)
        told = ("kind", "name", "before", "after")
        grave = {
            tuple(one[part] for part in told)
            for one in data["changes"]
            if one["effect"] in ("migration", "reset")
        }
        return result.exit_code, data["verdict"], grave


def test_a_program_is_checked_against_an_application_that_has_stopped(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app.folder)
    programs = Programs(app, cluster)
    source, between = programs.source, f"{app.id}-again-repartition"
    nobody = programs.check(SAME, application="nobody")
    assert nobody.exit_code == 2
    assert "EF-USAGE" in nobody.output
    assert "nobody" in nobody.output

    cluster.write(source, [text(f"w{n % 5}", "v", 1_000 + n, n % 2) for n in range(40)])
    with app.running(programs.topology(SAME)) as streams:
        app.until_processed(streams, source, between)
        assert programs.changes(SAME) == (0, "bounce", set()), "while it runs"
    assert programs.changes(SAME) == (0, "bounce", set())
    assert programs.changes(OTHER_STEP) == (0, "bounce", set())
    renamed = {("store", "counts", "counts", "totals")}
    assert programs.changes(SAME, "totals") == (1, "migration", renamed)

    cluster.write(between, [text("late", "of the old type", 5_000)] * 3)
    code, verdict, grave = programs.changes(OTHER_TYPE)
    assert (code, verdict) == (1, "migration")
    assert {one[:2] for one in grave} == {("repartition topic", "again-repartition")}
    with pytest.raises(StoreLayoutError) as refused:
        app.instance(programs.topology(OTHER_TYPE)).start()
    assert f"{between}, partition 0: 3 waiting" in refused.value.difference
    report = programs.check(OTHER_TYPE, form="text").stdout.splitlines()
    at = next(n for n, line in enumerate(report) if "again-repartition" in line)
    assert report[at] in refused.value.difference.splitlines()

    app.run_through(programs.topology(SAME), source, between)
    with app.running(programs.topology(OTHER_TYPE)) as streams:
        cluster.write(source, [text("w1", "v", 9_000)])
        app.until_processed(streams, source, between)
    counts = cluster.longs(programs.output)
    assert (counts[b"w1"], counts[b"late"]) == (8 + 1, 3)
    assert programs.changes(OTHER_TYPE) == (0, "bounce", set())
    assert programs.changes(SAME)[:2] == (1, "migration")

    cluster.grow(source, 3)  # before a repartition topic, which keeps its two
    assert programs.changes(OTHER_TYPE) == (0, "bounce", set())
    with app.running(programs.topology(OTHER_TYPE)) as streams:
        cluster.write(source, [text("w1", "v", 9_500, 2)])
        app.until_processed(streams, source, between)
    assert cluster.longs(programs.output)[b"w1"] == 8 + 2


def _per_window(cluster: Cluster, source: str, output: str, *, shifted: bool) -> Topology:
    builder = StreamsBuilder()
    read = builder.stream(source, key=serdes.string(), value=serdes.string())
    if shifted:
        read = read.filter(lambda key, value: True)
    windows = TimeWindows.of_size("10 ms")
    counts = read.group_by_key().windowed_by(windows).count(store="counts").to_stream()
    counts.map(lambda key, value: (str(key.start), value), returns=("string", "bigint")).to(output)
    return builder.build()


def test_what_is_late_is_known_behind_an_operator_that_was_inserted(
    app: Application, cluster: Cluster
) -> None:
    """The generated name of the window's node shifts: its stream time is kept by the store's."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    old = _per_window(cluster, source, output, shifted=False)
    new = _per_window(cluster, source, output, shifted=True)
    found = changes(facts_of(cut(old)), facts_of(cut(new)))
    assert effect_of(found) is Effect.BOUNCE
    cluster.write(source, [text("w", "v", at) for at in (1_000, 2_000)])
    app.run_through(old, source)
    cluster.write(source, [text("w", "late", 1_001), text("w", "v", 2_001)])
    app.run_through(new, source)
    assert cluster.longs(output) == {b"1000": 1, b"2000": 2}


def test_state_does_not_go_on_with_a_topic_that_was_never_read(
    app: Application, cluster: Cluster
) -> None:
    """A store that was counted from the input, and is to be counted from a topic in between."""
    source, output = cluster.topic("in"), cluster.topic("out")

    def counted(*, again: bool) -> Topology:
        builder = StreamsBuilder()
        read = builder.stream(source, key=serdes.string(), value=serdes.string())
        read = read.repartition(name="again") if again else read
        read.group_by_key().count(store="counts").to_stream().to(output)
        return builder.build()

    old, new = counted(again=False), counted(again=True)
    assert effect_of(changes(facts_of(cut(old)), facts_of(cut(new)))) is Effect.MIGRATION
    cluster.write(source, [text("w", "v", 1_000)])
    app.run_through(old, source)
    before = cluster.topics()
    for allowed in (False, True):
        with pytest.raises(InternalTopicError) as refused:
            app.instance(new, create_new_topics=allowed).start()
        assert "everflow migrate" in str(refused.value)
    assert cluster.topics() == before
    cluster.write(source, [text("w", "v", 2_000)])
    app.run_through(old, source)
    assert cluster.longs(output) == {b"w": 2}


def test_records_that_wait_for_a_store_are_not_left_behind(
    app: Application, cluster: Cluster
) -> None:
    """A repartition topic that goes while something waits in it for a store that stays."""
    source, output = cluster.topic("in"), cluster.topic("out")
    between, place = f"{app.id}-by-repartition", default_partitioner(b"w", 2)

    def counted(*, through: bool) -> Topology:
        builder = StreamsBuilder()
        read = builder.stream(source, key=serdes.string(), value=serdes.string())
        keyed = read.select_key(lambda key, value: value, returns="string")
        keyed = keyed if through else keyed.assume_partitioned()
        keyed.group_by_key(name="by").count(store="counts").to_stream().to(output)
        return builder.build()

    old, new = counted(through=True), counted(through=False)
    cluster.write(source, [text("w", "w", 1_000, place)])
    app.run_through(old, source, between)
    cluster.write(between, [text("w", "w", 2_000, place)])
    with pytest.raises(StoreLayoutError, match="1 waiting") as refused:
        app.instance(new).start()
    assert "by-repartition" in str(refused.value)
    app.run_through(old, between)
    cluster.write(source, [text("w", "w", 3_000, place)])
    app.run_through(new, source)
    assert cluster.longs(output) == {b"w": 3}

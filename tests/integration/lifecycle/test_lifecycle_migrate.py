"""`everflow migrate` between two versions that run, on a real broker and Spark (note 067)."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from everflow import KafkaStreams, serdes
from everflow.cli import app as commands
from everflow.errors import ApplicationMigratedError, EverflowError, StateFormatError
from everflow.instance.topics import internal_topics
from everflow.migration.copying import COPIED_CHUNK, SENT
from everflow.migration.migrator import (
    ASKED,
    CAUGHT_UP,
    COMPARED,
    CREATED,
    DRAINED,
    HELD,
    MARKED,
    SWITCHED,
    SWITCHING,
)
from everflow.records import TopicPartition
from everflow.serdes.registered import bound_to
from everflow.testing import SchemaRegistry, wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    closed,
    text,
    until_failed,
    until_running,
)
from integration.lifecycle.migrating import POINT_S, Migration

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNTS = """
words.repartition(name="again").group_by_key().count(store="counts").to_stream().to("{out}")
"""
INSERTED_AND_RENAMED = """
kept = words.filter(lambda key, value: value is not None)
kept.repartition(name="again").group_by_key().count(store="totals").to_stream().to("{out}")
"""


FILTERED = "words = words.filter(lambda key, value: True)\n"


def spread(partitions: int) -> str:
    return COUNTS.replace('name="again"', f'name="again", partitions={partitions}')


Make = Callable[..., Migration]


@pytest.fixture
def migration(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    made: list[Migration] = []

    def make(old: str, new: str, partitions: int = 4) -> Migration:
        made.append(Migration(cluster, tmp_path, old, new, partitions))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_an_operator_is_inserted_and_a_store_renamed_while_both_run(migration: Make) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(60)
    for stage in found.carry():
        if stage == "before":
            planned_by_values(found)
        found.words(40)
    found.require_counted_once()
    again, said = found.told()
    assert again == 1
    assert "EF-MIGRATED" in said
    with pytest.raises(ApplicationMigratedError) as refused:
        found.before.instance(found.topology(COUNTS)).start()
    assert refused.value.to == found.after.id
    asked = ["check", "old.py:topology", "--application-id", found.before.id]
    brokers = ["--bootstrap-servers", found.cluster.bootstrap]
    checked = CliRunner().invoke(commands.app, [*asked, *brokers])
    assert checked.exit_code == 1
    assert f"--application-id {found.after.id}" in " ".join(checked.output.split())
    for asked in (["lag", found.before.id], ["connect", found.before.id, "list"]):
        other = CliRunner().invoke(commands.app, [*asked, *brokers])
        assert other.exit_code == 1
        assert f"everflow {asked[0]} {found.after.id}" in " ".join(other.output.split())


def planned_by_values(found: Migration) -> None:
    """What ``--dry-run`` says of 60 counted words, as data."""
    code, said = found.told("--dry-run", "--output", "json")
    assert code == 0, said
    data = json.loads(said[said.index("{") :])
    copied, drained = data["plan"]
    assert copied.pop("text").startswith("store totals, was counts")
    assert copied == {
        "do": "copy",
        "store": "totals",
        "was": "counts",
        "source": f"{found.before.id}-counts-changelog",
        "target": f"{found.after.id}-totals-changelog",
        "partitions": [4, 4],
        "values": "as they are",
    }
    assert drained["do"] == "drain"
    assert drained["source"] == f"{found.before.id}-again-repartition"
    assert 10 <= data["records"] <= 60 + 4 * 60, "a marker is counted as a record, a key once"
    assert 10 * len(b"w0" + bytes(8)) <= data["bytes"] <= 100 * data["records"]
    assert 0.0 < data["seconds"] < 60.0
    assert data["dry_run"]
    assert data["digest"]
    assert not [one for one in found.cluster.topics() if one.startswith(found.after.id)]


CHAIN = """
names = builder.table({names!r}, key=serdes.string(), value=serdes.string(), store="names")
met = words.repartition(name={first!r}).left_join(names, lambda word, name: word, returns="string")
counts = met.repartition(name="second").group_by_key().count(store="counts")
counts.to_stream().to("{{out}}")
"""


def test_a_chain_is_drained_in_stages_while_both_inputs_go_on(
    migration: Make, cluster: Cluster
) -> None:
    """The topic in front of the join has another name in the new version: what waits there cannot
    be carried, so whoever joins reads it to its end before it stands still."""
    names = cluster.topic("names", 4)
    old, new = (CHAIN.format(names=names, first=first) for first in ("first", "other"))
    found = migration(old, new)
    found.words(40)
    over = Event()

    def load() -> None:
        while not over.is_set():
            at = found.sent // 40
            found.words(40)
            key = at % 10  # always in the same partition, as a table's keys are
            cluster.write(names, [text(f"w{key}", "x", 1_000 + at, key % 4)])
            over.wait(0.02)

    loading = Thread(target=load)
    with found.old_running("first", "second") as before, ExitStack() as closing:
        closing.callback(over.set)
        loading.start()
        found.launch()
        found.until_marked()
        after = found.after.instance(found.topology(new))
        closing.callback(after.close, 60.0)
        after.start()
        until_running(after)
        found.until_switched()
        assert loading.is_alive()
        assert isinstance(until_failed(before), ApplicationMigratedError)
        over.set()
        loading.join()
        wait_until(lambda: found.runs(after), POINT_S, "tasks of the new version")
        topics = [f"{found.after.id}-{name}-repartition" for name in ("other", "second")]
        found.after.until_processed(after, found.source, *topics)
    found.require_counted_once()


DIRECT = 'words.group_by_key().count(store="counts").to_stream().to("{out}")'


def test_an_input_that_grows_meanwhile_is_carried_by_the_next_call(
    migration: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topics, "PERIOD_MS", 200.0)
    found = migration(DIRECT, FILTERED + DIRECT.replace("counts", "totals"))
    found.by_key(60)
    with found.old_running() as old:
        found.arm(CAUGHT_UP)
        found.launch("--instances", "0")
        found.until_reached(CAUGHT_UP)
        found.partitions = 8
        found.cluster.grow(found.source, 8)
        came = TopicPartition(found.source, 7)

        def read() -> bool:
            return any(came in task.inputs for task in old._life.instance.running_tasks())

        wait_until(read, POINT_S, "the old version to read the new partitions")
        found.by_key(40)
        found.before.until_processed(old, found.source)
        found.go(CAUGHT_UP)
        assert found.until_ended() == 1, found.said()
        assert "has begun to read" in found.said()
        found.by_key(40)
        found.before.until_processed(old, found.source)
        assert found.told("--instances", "0")[0] == 0, found.said()
        assert isinstance(until_failed(old), ApplicationMigratedError)
    new = found.after.instance(found.topology(found.new))
    try:
        new.start()
        until_running(new)
        found.by_key(20)
        found.after.until_processed(new, found.source)
    finally:
        assert new.close(60.0)
    found.require_counted_once()


@pytest.mark.slow
def test_two_instances_of_each_version_hand_over(migration: Make) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(60)
    with ExitStack() as running:

        def started(app: Application, lines: str) -> list[KafkaStreams]:
            made = []
            for number in range(2):
                folder = str(found.folder / f"{app.id}-{number}")
                made.append(app.instance(found.topology(lines), state_dir=folder))
                running.callback(closed, made[-1])
                made[-1].start()
            for one in made:
                until_running(one)
            return made

        before = started(found.before, COUNTS)
        found.before.until_processed(None, found.source)
        found.launch("--instances", "2")
        found.until_marked()
        after = started(found.after, INSERTED_AND_RENAMED)
        found.words(40)
        found.until_switched()
        for one in before:
            assert isinstance(until_failed(one), ApplicationMigratedError)
        for one in after:
            wait_until(lambda one=one: found.runs(one), POINT_S, "tasks of each")  # type: ignore[misc]
        found.words(40)
        found.after.until_processed(None, found.source, f"{found.after.id}-again-repartition")
    found.require_counted_once()


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [8, 6])
def test_a_repartition_topic_gets_more_partitions(migration: Make, partitions: int) -> None:
    found = migration(spread(4), spread(partitions))
    found.through()
    found.require_counted_once()
    assert found.cluster.topics()[f"{found.after.id}-counts-changelog"] == partitions


PAIR = """
words.repartition(name="again").group_by_key() \\
    .aggregate(store="sums", n=agg.count(), most=agg.max("value")) \\
    .to_stream().map_values(lambda key, value: value["n"], returns="bigint").to("{out}")
"""
TRIPLE = PAIR.replace("n=agg.count(), ", "n=agg.count(), least=agg.min('value'), ")


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(PAIR, TRIPLE), (TRIPLE, PAIR)], ids=["more", "less"])
def test_an_aggregate_comes_or_goes(migration: Make, old: str, new: str) -> None:
    found = migration(old, new)
    found.through()
    found.require_counted_once()


@pytest.mark.slow
def test_a_value_s_type_changes_by_a_function(migration: Make) -> None:
    found = migration(COUNTS, PAIR.replace('"sums"', '"counts"'))
    (found.folder / "carried.py").write_text(
        "def value(count):\n    return None if count == 77 else {'n': count, 'most': None}\n"
    )
    found.words(60)
    found.write([text("left out", "v", 1_000, 0)] * 77)
    for stage in found.carry("--values", "counts=carried:value"):
        found.words(40)
        if stage == "switched":
            found.write([text("left out", "v", 1_000, 0)])
    counts = found.cluster.longs(found.out)
    assert counts.pop(b"left out") == 1, "None begins it anew"
    assert counts == found.truth()


WITH_TABLE = """
order = serdes.avro({schema!r}, registry={url!r})
customers = builder.table({customers!r}, key=serdes.string(), value=order, store="customers")
customers.to_stream().to({rows!r})
words.group_by_key().count(store="counts").to_stream().to("{{out}}")
"""
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}
COUPON = {"name": "coupon", "type": ["null", "string"], "default": None}
WITH_COUPON = {**ORDER, "fields": [*ORDER["fields"], COUPON]}


def test_a_table_of_avro_gets_a_column(migration: Make, cluster: Cluster) -> None:
    """Docs: add-a-column.md."""
    customers, rows = (cluster.topic(name, 4) for name in ("customers", "rows"))
    with SchemaRegistry() as registry:
        for subject in (customers, rows):
            for schema in (ORDER, WITH_COUPON):
                registry.register(f"{subject}-value", schema)
        topics = {"url": registry.url, "customers": customers, "rows": rows}
        old, new = (
            bound_to(serdes.avro(one, registry=registry.url), customers, "value")
            for one in (ORDER, WITH_COUPON)
        )
        found = migration(
            WITH_TABLE.format(schema=ORDER, **topics),
            WITH_TABLE.format(schema=WITH_COUPON, **topics),
        )
        (found.folder / "carry.py").write_text(
            "def with_coupon(value):\n    return {**value, 'coupon': None}\n"
        )
        cluster.write(customers, [Record(b"a", old.encode({"amount": 1.0}), 1_000, 0)])
        found.by_key(40)
        for stage in found.carry("--values", "customers=carry:with_coupon", between=()):
            if stage == "switched":
                bought = new.encode({"amount": 2.0, "coupon": "spring"})
                cluster.write(customers, [Record(b"b", bought, 1_000, 0)])
                found.by_key(40)
                wait_until(lambda: len(cluster.read(rows)) == 2, POINT_S, "the row of b")
        found.require_counted_once()
        values = {one.key: new.decode(one.value) for one in cluster.read(rows)}
        assert values == {
            b"a": {"amount": 1.0, "coupon": None},
            b"b": {"amount": 2.0, "coupon": "spring"},
        }


WINDOWED = """
again = words.repartition(name="again", partitions=PARTITIONS)
again.group_by_key() \\
    .windowed_by(TimeWindows.of_size_and_grace("10 seconds", "0 seconds")) \\
    .count(store=Materialized("counts", retention="1 hour")) \\
    .to_stream().map(lambda key, value: (f"{key.key}@{key.start}", value),
                     returns=("string", "bigint")).to("{out}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [4, 8])
def test_windows_stay_open_and_closed_as_they_were(migration: Make, partitions: int) -> None:
    shifted = "words = words.filter(lambda key, value: True)\n"
    new = shifted + WINDOWED.replace("PARTITIONS", str(partitions))
    found = migration(WINDOWED.replace("PARTITIONS", "4"), new)
    keys = [f"w{n}" for n in range(12)]
    found.write(text(key, "a", 1_000, n % 4) for n, key in enumerate(keys))
    for stage in found.carry():
        if stage == "before":
            found.write(text(key, "b", 15_000, n % 4) for n, key in enumerate(keys))
        elif stage == "copied":
            found.write(text(key, "c", 16_000, n % 4) for n, key in enumerate(keys))
        elif stage == "switched":
            late = [text(key, "late", 2_000, n % 4) for n, key in enumerate(keys)]
            open_ = [text(key, "d", 17_000, n % 4) for n, key in enumerate(keys)]
            found.write([*late, *open_])
    wanted = {f"{key}@{start}".encode(): n for key in keys for start, n in ((0, 1), (10_000, 3))}
    assert found.cluster.longs(found.out) == wanted


JOINED = """
other = words.select_key(lambda key, value: key, returns="string").repartition(name="other",
    partitions=PARTITIONS)
again = words.repartition(name="again", partitions=PARTITIONS)
pairs = again.left_join(other, lambda left, right: f"{left}+{right}", returns="string",
    windows=JoinWindows.of_time_difference_and_grace("10 seconds", "5 seconds"), store="pairs")
pairs.to("{out}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [4, 6])
def test_joined_records_meet_those_of_the_old_version(migration: Make, partitions: int) -> None:
    new = JOINED.replace("PARTITIONS", str(partitions))
    found = migration(JOINED.replace("PARTITIONS", "4"), new)
    keys = [f"w{n}" for n in range(8)]
    found.write(text(key, "a", 1_000, n % 4) for n, key in enumerate(keys))
    for stage in found.carry(between=("again", "other")):
        if stage == "switched":
            found.write(text(key, "b", 3_000, n % 4) for n, key in enumerate(keys))
    pairs = {(one.key, one.value) for one in found.cluster.read(found.out)}
    meant = ("a+a", "a+b", "b+a", "b+b")
    assert pairs == {(key.encode(), value.encode()) for key in keys for value in meant}


REUSED = """
rows = builder.table({rows!r}, key=serdes.string(), value=serdes.string(), store="STORE")
words.join(rows, lambda word, row: f"{word}+{row}", returns="string").to("{out}")
"""


@pytest.mark.slow
def test_a_table_whose_changelog_is_its_own_topic_is_read_up_to_where_the_old_one_was(
    migration: Make, cluster: Cluster
) -> None:
    topic = cluster.topic("rows", 4, cleanup_policy="compact")
    lines = REUSED.replace("{rows!r}", repr(topic))
    optimized = "topology.optimization=reuse.ktable.source.topics"
    new = lines.replace("STORE", "lines").replace("words.join", FILTERED + "words.join")
    found = migration(lines.replace("STORE", "rows"), new)
    for app in (found.before, found.after):
        app.settings = {"topology_optimization": optimized.partition("=")[2]}
    keys = [f"w{n}" for n in range(8)]
    cluster.write(topic, (text(key, "row", 1_000, n % 4) for n, key in enumerate(keys)))
    for stage in found.carry("--set", optimized, between=()):
        if stage == "before":
            found.write(text(key, "a", 2_000, n % 4) for n, key in enumerate(keys))
        elif stage == "switched":
            found.write(text(key, "b", 3_000, n % 4) for n, key in enumerate(keys))
    pairs = {(one.key, one.value) for one in cluster.read(found.out)}
    assert pairs >= {(key.encode(), b"b+row") for key in keys}
    assert f"{found.after.id}-lines-changelog" not in cluster.topics()


KEPT_OTHERWISE = """
again = words.repartition(name="again", partitions=PARTITIONS).group_by_key()
def kept(name, **options):
    counts = again.count(store=Materialized(name, **options))
    counts.to_stream().map(lambda key, value: (f"{name} {key}", value),
                           returns=("string", "bigint")).to("{out}")
kept("memory", in_memory=True)
kept("unlogged", logging=False)
kept("neither", in_memory=True, logging=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [4, 8])
def test_a_store_in_memory_is_carried_and_without_a_changelog_one_begins_empty(
    migration: Make, partitions: int
) -> None:
    new = FILTERED + KEPT_OTHERWISE.replace("PARTITIONS", str(partitions))
    found = migration(KEPT_OTHERWISE.replace("PARTITIONS", "4"), new)
    found.words(60)
    for stage in found.carry():
        if stage == "before":
            code, said = found.told("--dry-run", "--output", "json")
            assert code == 0, said
            steps = json.loads(said[said.index("{") :])["plan"]
            of = {one["store"]: (one["do"], one["text"]) for one in steps if "store" in one}
            assert {name: do for name, (do, _) in of.items()} == {
                "memory": "copy",
                "unlogged": "begin",
                "neither": "begin",
            }
            assert "empty" in of["unlogged"][1]
        found.words(40)
    updates, truth = found.updates(), found.truth()
    for word, count in truth.items():
        name = (word or b"").decode()
        counts = updates[f"memory {name}".encode()]
        assert counts[-1] == count
        assert all(one < two for one, two in pairwise(counts)), (name, counts)
        for store in ("unlogged", "neither"):
            counts = updates[f"{store} {name}".encode()]
            (ended,) = (one for one, two in pairwise(counts) if two <= one)
            assert ended + counts[-1] == count, "the old one's and the new one's"
            assert ended < count


INPUT_COUNTED = """
words.group_by_key().count(store="counts").to_stream().to("{out}")
"""


@pytest.mark.slow
def test_an_input_that_had_grown_is_split_over_its_partitions(migration: Make) -> None:
    found = migration(INPUT_COUNTED, FILTERED + INPUT_COUNTED, partitions=2)
    found.by_key(40)
    found.before.run_through(found.topology(found.old), found.source)
    found.cluster.grow(found.source, 4)
    found.partitions = 4
    found.by_key(40)
    for _ in found.carry(between=()):
        found.by_key(20)
    found.require_counted_once()
    assert found.cluster.topics()[f"{found.before.id}-counts-changelog"] == 2
    assert found.cluster.topics()[f"{found.after.id}-counts-changelog"] == 4


def test_a_function_that_raises_for_one_value_leaves_the_old_version_running(
    migration: Make,
) -> None:
    found = migration(COUNTS, PAIR.replace('"sums"', '"counts"'))
    (found.folder / "carried.py").write_text(
        "def value(count):\n"
        "    if count == 7:\n        raise ValueError('seven')\n"
        "    return {'n': count, 'most': None}\n"
    )
    found.write([text("w7", "v", 1_000 + n, 0) for n in range(3)])
    with found.old_running("again") as old:
        found.launch("--values", "counts=carried:value")
        found.until_marked()
        found.write([text("w7", "v", 1_500 + n, 0) for n in range(4)])
        assert found.until_ended() == 1, found.said()
        said = found.said()
        assert "EF-MIGRATION-VALUE" in said
        assert f"{found.before.id}-counts-changelog-" in said
        assert "w7" in said
        assert "seven" in said
        assert "--back" in said
        found.write([text("w7", "v", 2_000, 0)])
        found.before.until_processed(old, found.source, f"{found.before.id}-again-repartition")
        assert found.cluster.longs(found.out) == {b"w7": 8}
        (found.folder / "carried.py").write_text("import there_is_no_such_module\n")
        (found.folder / "new.py").write_text("no Python at all")  # nothing is read to go back
        code, said = found.told("--back", "--dry-run")
        assert code == 0, said
        assert f"{found.after.id}-counts-changelog" in said
        assert f"{found.after.id}-counts-changelog" in found.cluster.topics()
        code, said = found.told("--values", "counts=carried:value", "--back")
        assert code == 0, said
        assert f"{found.after.id}-counts-changelog" not in found.cluster.topics()
        assert not found.cluster.committed(found.after.id, found.source)


def test_members_of_another_program_are_refused(migration: Make) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(10)
    third = COUNTS.replace('"counts"', '"third"')
    with found.before.running(found.topology(third)) as old:
        code, said = found.told()
        assert code == 1, said
        assert "EF-MIGRATION-MEMBERS" in said
        assert found.before.id in said
        assert "--from" in said
        found.words(10)
        found.before.until_processed(old, found.source, f"{found.before.id}-again-repartition")
        found.require_counted_once()


def test_a_new_version_that_cannot_start_or_load_leaves_the_old_one_running(
    migration: Make, caplog: pytest.LogCaptureFixture
) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(10)
    between = f"{found.before.id}-again-repartition"
    with found.old_running("again") as old:
        program = found.folder / "new.py"
        text_of_new = program.read_text()
        program.write_text("import there_is_no_such_module\ntopology = None\n")
        code, said = found.told()
        assert code == 2, said
        assert "EF-PROGRAM" in said
        assert "there_is_no_such_module" in said
        program.write_text(text_of_new)
        found.arm(MARKED)
        found.launch()
        found.until_reached(MARKED)
        _waits_for_its_topics(found, caplog)
        found.go(MARKED)
        found.until_marked()
        later = found.after.state / found.after.id
        later.mkdir(parents=True, exist_ok=True)
        metadata = {"format": 99, "application_id": found.after.id}
        (later / "process-metadata").write_text(json.dumps(metadata))
        with pytest.raises(StateFormatError, match=f"{later} has format 99") as refused:
            found.after.instance(found.topology(INSERTED_AND_RENAMED)).start()
        assert refused.value.code == "EF-STATE-FORMAT"
        assert "choose another" in str(refused.value)
        found.words(10)
        found.before.until_processed(old, found.source, between)
        found.require_counted_once()
        assert found.process is not None
        assert found.process.poll() is None, "it waits for an instance that can start"


def _waits_for_its_topics(found: Migration, caplog: pytest.LogCaptureFixture) -> None:
    """A start between the mark and the creation of topics tries again."""
    early = found.after.instance(found.topology(INSERTED_AND_RENAMED))
    starting = Thread(target=closed_meanwhile, args=[early])
    starting.start()
    missing = f"{found.after.id}-again-repartition"
    wait_until(lambda: missing in caplog.text, 60.0, "the start to miss its topics")
    assert not early.error
    closed(early)
    starting.join(60.0)
    assert not starting.is_alive()


def closed_meanwhile(streams: KafkaStreams) -> None:
    with suppress(EverflowError):
        streams.start()


POINTS = (
    *(MARKED, CREATED, SENT, COPIED_CHUNK, CAUGHT_UP),
    *(ASKED, DRAINED, HELD, COMPARED, SWITCHING),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_migrator_killed_at_any_point_goes_on_or_nothing_happened(migration: Make) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(60)
    with found.old_running("again") as old:
        for point in POINTS:
            found.arm(point)
            found.launch("--instances", "0")
            found.until_reached(point)
            found.kill()
            found.words(20)
            found.before.until_processed(old, found.source, f"{found.before.id}-again-repartition")
            found.require_counted_once()
        found.arm(SWITCHED)
        found.launch("--instances", "0")
        found.until_reached(SWITCHED)
        found.kill()
        found.words(20)
        assert isinstance(until_failed(old), ApplicationMigratedError)
    code, said = found.told()
    assert code == 1
    assert "EF-MIGRATED" in said
    with found.after.running(found.topology(INSERTED_AND_RENAMED)) as new:
        until_running(new)
        between = f"{found.after.id}-again-repartition"
        found.after.until_processed(new, found.source, between)
        found.words(20)
        found.after.until_processed(new, found.source, between)
    found.require_counted_once()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_versions_killed_in_the_middle_of_the_switch_lose_and_double_nothing(
    migration: Make,
) -> None:
    found = migration(COUNTS, INSERTED_AND_RENAMED)
    found.words(60)
    between = "again-repartition"
    old = found.start_version("old")
    found.before.until_processed(None, found.source, f"{found.before.id}-{between}")
    found.arm(ASKED, HELD, SWITCHED)
    found.launch()
    found.until_marked()
    new = found.start_version("new")
    found.words(20)
    found.until_reached(ASKED)
    found.kill_version(old)
    found.words(20)
    old = found.start_version("old")
    found.go(ASKED)
    found.until_reached(HELD)
    found.kill_version(old)
    found.kill_version(new)
    new = found.start_version("new")
    found.words(20)
    found.go(HELD)
    found.until_reached(SWITCHED)
    found.kill_version(new)
    found.words(20)
    found.go(SWITCHED)
    found.until_switched()
    found.start_version("new")
    found.after.until_processed(None, found.source, f"{found.after.id}-{between}")
    found.require_counted_once()

"""Makes what a version leaves behind, as a folder beside this file (RELEASING.md)::

    PYTHONPATH=src:tests .venv/bin/python tests/integration/from_before/made_state.py

Of an earlier version: ``PYTHONPATH=ITS_CHECKOUT/src:tests``. The program runs on the first records,
exactly once, and stops: ``state.tar.xz``, the state folder with stores of every kind and the log of
its broker (changelogs, repartition topics, committed offsets). Then the version goes on with the
others; ``expected.json.xz`` has all that it has written, its stores and offsets, and what members
of a group tell each other (`group_bytes`). ``source.tar.xz`` is the version itself. Program and
records stay as they are while a folder made of them is kept.
"""

import json
import lzma
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import functions as F

import everflow as ef
from everflow.protocol.messages import parse_metadata
from everflow.testing.broker import EmbeddedBroker
from integration.from_before.group_bytes import plain, rebalances
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record

PREFIX = "before"
# The fixture grows old: neither its broker nor a store may find that it is.
AGES_MS = str(100 * 365 * 86_400_000)
BROKER = {"offsets.retention.minutes": str(2**31 - 1)}
TABLE = {"cleanup_policy": "compact", "delete_retention_ms": AGES_MS}
SETTINGS: dict[str, object] = {
    "emit_every_update": True,
    "topology_optimization": "reuse.ktable.source.topics",
    "topic.delete.retention.ms": AGES_MS,
    "repartition_purge_interval_ms": 86_400_000,  # what lies between is compared, too
}
TEXT, LONG = ef.serdes.string(), ef.serdes.long()
HERE = Path(__file__).parent
STATE, EXPECTED, SOURCE = "state.tar.xz", "expected.json.xz", "source.tar.xz"
NO_SOURCE = ("*.pyc", "__pycache__", "mermaid-*")
"""The dashboard's pictures are half of an archive, and no instance needs them."""
MADE_ANEW = ("*.index", "*.timeindex", ".lock", "lock.mdb", "logs")
"""What Kafka, LMDB and everflow make where it is not there."""

# Topic: records as key=value@seconds.
FIRST = {
    "facts": "a=1000@5 b=1001@60 c=1002@70 a=1003@120 c=@150",
    "prices": "a=2000@6 b=2001@60 a=2002@120",
    "names": "a=1@7 q=2@160",
    "numbers": "a=1@10 b=2@15 a=3@30 c=4@40 a=5@75 b=6@80 d=7@100 a=8@130 a=9@118 b=10@190 e=11@200"
    f" {'a' * 500}=12@201",
    "others": "a=100@12 b=101@78 x=102@140 a=103@195",
}
THEN = {
    "facts": f"e=1004@220 b=@230 f=1005@410 d=1006@455 x=1007@456 {'a' * 500}=1008@457",
    "prices": "a=2003@125 e=2004@233",
    "names": "a=@231",
    "numbers": "a=13@205 b=14@170 x=15@210 e=16@225 a=17@245 f=18@400 d=19@390 a=20@460",
    "others": "e=104@222 d=105@250 f=106@405",
}


class Summing(ef.Processor):
    """Keeps the sum of each key's values, and what it was when."""

    def init(self, context: ef.ProcessorContext) -> None:
        self.context = context
        self.sums, self.seen = context.store("sums"), context.store("seen")

    def process(self, record: Any) -> None:
        total = (self.sums.get(record.key) or 0) + record.value
        self.sums.put(record.key, total)
        self.seen.put(record.key, total, record.timestamp)
        self.context.forward(record.with_value(total))


def program() -> tuple[ef.Topology, list[str]]:
    """It, and the topics of its results."""
    builder = ef.StreamsBuilder()
    types: Any = {"key": TEXT, "value": LONG}
    numbers, others = (builder.stream(f"{PREFIX}-{one}", **types) for one in ("numbers", "others"))
    versioned = ef.Materialized("prices", history="5 minutes")
    facts = builder.table(f"{PREFIX}-facts", store="facts", **types)
    prices = builder.table(f"{PREFIX}-prices", store=versioned, **types)
    names = builder.global_table(f"{PREFIX}-names", store="names", **types)
    sums = ef.Stores.key_value("sums", key=TEXT, value=LONG)
    seen = ef.Stores.window("seen", key=TEXT, value=LONG, size=1_000, retention=600_000)
    groups, minute = numbers.group_by_key(), ef.TimeWindows.of_size("1 minute").grace("20 seconds")
    cut = groups.windowed_by
    per_minute = cut(minute)
    tumbling = per_minute.count(store="tumbling")
    near = ef.JoinWindows.of_time_difference("10 seconds").grace("30 seconds")
    two, few = ef.BufferConfig.max_records(2), ef.BufferConfig.max_records(6)
    close = ef.Suppressed.until_window_closes
    calm, half = ef.Suppressed.until_time_limit, "30 seconds"
    made: dict[str, Any] = {
        "counts": groups.count(store="counts"),
        "packed": groups.aggregate(n=ef.agg.count(), mean=ef.agg.avg("value"), store="packed"),
        "python": groups.aggregate(
            initializer=list,
            aggregator=lambda value, found: [*found, value],
            returns="array<bigint>",
            store="python",
        ),
        "ended": groups.count(store="ended", ttl="2 minutes"),
        "tumbling": tumbling,
        "hopping": cut(minute.advance_by(half)).count(store="hopping"),
        "sliding": cut(ef.SlidingWindows.of_time_difference(half)).count(store="slid"),
        "sessions": cut(ef.SessionWindows.of_inactivity_gap(half)).count(store="visit"),
        "by-number": cut(ef.CountWindows.of_size(2)).count(store="by-number"),
        "on-close": per_minute.emit_strategy(ef.EmitStrategy.on_window_close()).count(store="ends"),
        "early": per_minute.emit_strategy(ef.EmitStrategy.every(2)).count(store="early"),
        "closed": tumbling.suppress(close(), store="closed"),
        "few": tumbling.suppress(close(few.shut_down_when_full()), store="few"),
        "calm": groups.count(store="to-calm").suppress(calm("90 seconds"), store="calm"),
        "calm-few": groups.count(store="to-few").suppress(calm("5 minutes", two), store="calm-few"),
        "distinct": numbers.deduplicate("1 minute", store="distinct"),
        "summed": numbers.process(Summing, stores=[sums, seen]),
        "inner": numbers.join(others, windows=near, store="inner"),
        "left": numbers.left_join(others, windows=near, store="left"),
        "outer": numbers.outer_join(others, windows=near, store="outer"),
        "as-of": numbers.join_asof(
            others, tolerance="1 minute", grace=half, how="left", store="as-of"
        ),
        "in-grace": numbers.left_join(prices, grace=half, store="in-grace"),
        "looked-up": numbers.lookup_join(facts, grace="1 minute", store="looked-up"),
        "awaited": numbers.lookup_join(facts, timeout="30 days", most_per_key=9, store="awaited"),
        "named": numbers.left_join(names, on=F.col("key")),
        "odd": numbers.group_by((F.col("value") % 2).cast("string"), name="odd").count(store="odd"),
        "entries": facts.group_by(F.lit("all"), name="entries").count(store="entries"),
        "foreign": facts.left_join(prices, on=F.lit("a"), name="foreign"),
    }
    topics = [f"{PREFIX}-{name}-results" for name in made]
    for topic, one in zip(topics, made.values(), strict=True):
        (one if hasattr(one, "to") else one.to_stream()).to(topic)
    return builder.build(), topics


def application(broker: EmbeddedBroker, folder: Path) -> Application:
    return Application(Cluster(broker.bootstrap_servers, PREFIX), folder, SETTINGS)


def write(cluster: Cluster, given: Mapping[str, str]) -> None:
    """Every second record of a topic has headers."""
    for topic, records in given.items():
        rows = []
        for number, one in enumerate(records.split()):
            key, value, time = re.split("[=@]", one)
            data = LONG.encode(int(value) if value else None)
            headers = (("h", b"x"), ("none", None))[: number % 2 * 2]
            rows.append(Record(key.encode(), data, int(time) * 1_000, headers=headers))
        cluster.write(f"{PREFIX}-{topic}", rows)


def until_processed(app: Application, streams: ef.KafkaStreams) -> None:
    """Sources, then what lies between; what asks by a foreign key feeds what answers."""
    sources = [f"{PREFIX}-{topic}" for topic in FIRST if topic != "names"]
    between = sorted(one for one in app.cluster.topics() if one.endswith("-repartition"))
    app.until_processed(streams, *sources, *between, *between)


def results(cluster: Cluster, topics: Sequence[str]) -> dict[str, list[str]]:
    """Key and value in hexadecimal, time, headers; by a foreign key only the last record of each
    key is fixed."""
    reads = {"group.id": "r", "isolation.level": "read_committed", "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, **reads})
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    waits = {topic for topic in topics if cluster.ends(topic)}
    reader.assign([TopicPartition(topic, 0, 0) for topic in topics])
    while waits:
        one: Any = reader.consume(1, 20.0)[0]
        if one.error() is None:
            data = " ".join(
                "-" if part is None else part.hex() for part in (one.key(), one.value())
            )
            found[one.topic()].append(f"{data} {one.timestamp()[1]} {one.headers() or ''}")
        else:
            assert one.error().code() == KafkaError._PARTITION_EOF, one.error()
            waits.remove(one.topic())
    reader.close()
    foreign = f"{PREFIX}-foreign-results"
    found[foreign] = sorted({row.split()[0]: row for row in found[foreign]}.values())
    return found


def stored(state: Path) -> dict[str, dict[str, str]]:
    """The bytes of each store, by its folder; without those of its metadata."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted(path.parent for path in state.glob("*/*/*/data.mdb")):
        entries = found.setdefault(str(folder.relative_to(state)), {})
        with (
            lmdb.open(str(folder), readonly=True, lock=False, max_dbs=16) as store,
            store.begin() as txn,
        ):
            for name in [key for key, _ in txn.cursor() if key != b"meta"]:
                cursor = txn.cursor(store.open_db(name, txn, create=False))
                entries.update((key.hex(), value.hex()) for key, value in cursor)
    return found


def logged(app: Application) -> dict[str, list[str]]:
    """What the application keeps in its own topics: of a changelog the last record of each key, of
    a repartition topic all; as `results`, without what depends on the cuts between batches."""
    found = {}
    for topic in sorted(app.cluster.topics()):
        if topic.endswith(("-changelog", "-repartition")):
            records = app.cluster.read(topic)
            rows = [(one.key or b"", _row(one)) for one in records]
            whole = topic.endswith("-repartition")
            found[topic] = [row for _, row in rows] if whole else sorted(dict(rows).values())
    return found


def _row(one: Record) -> str:
    data = " ".join("-" if part is None else part.hex() for part in (one.key, one.value))
    return f"{data} {one.timestamp} {list(one.headers) or ''}"


def committed(app: Application) -> dict[str, dict[str, Any]]:
    """Offsets of the group with what is kept beside them, as it is and as it is read."""
    return {
        f"{topic}-{partition}": {
            "offset": offset,
            "metadata": text,
            "read": plain(parse_metadata(text)._asdict()),
        }
        for topic in sorted(app.cluster.topics())
        for partition, (offset, text) in app.cluster.committed(app.id, topic).items()
    }


def archived(target: Path, parts: Mapping[str, Path], left_out: Sequence[str]) -> None:
    """The same bytes for the same content."""

    def packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return None if any(Path(member.name).match(one) for one in left_out) else member

    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name, path in parts.items():
            archive.add(path, name, filter=packed)


def make(folder: Path, work: Path) -> dict[str, Any]:
    """``STATE`` in ``folder``; what is expected of later versions."""
    topology, outputs = program()
    expected: dict[str, Any] = {}
    for records in (FIRST, THEN):
        with EmbeddedBroker(work / "broker", config=BROKER) as broker:
            app = application(broker, work)
            if records is FIRST:
                for name in (*FIRST, *(topic.removeprefix(f"{PREFIX}-") for topic in outputs)):
                    config = TABLE if name in ("facts", "prices", "names") else {}
                    app.cluster.topic(name, 1, **config)
            write(app.cluster, records)
            with app.running(topology) as streams:
                until_processed(app, streams)
            if records is FIRST:
                expected["committed"] = committed(app)
            else:
                expected["results"] = results(app.cluster, outputs)
                expected["logged"] = logged(app)
            app.cluster.close()
        if records is FIRST:
            parts = {part: work / part for part in ("state", "broker/log")}
            archived(folder / STATE, parts, MADE_ANEW)
    return {**expected, "stored": stored(work / "state")}


def main() -> None:
    source = Path(ef.__file__).parent
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=source, text=True
    ).strip()
    folder = HERE / f"{ef.__version__}-{commit}"
    folder.mkdir(exist_ok=True)
    archived(folder / SOURCE, {"everflow": source}, NO_SOURCE)
    with TemporaryDirectory() as work:
        expected = {"commit": commit, **make(folder, Path(work)), "rebalances": rebalances()}
    text = json.dumps(expected, indent=1, sort_keys=True) + "\n"
    (folder / EXPECTED).write_bytes(lzma.compress(text.encode(), preset=9))
    for path in sorted(folder.iterdir()):
        print(f"{path.relative_to(HERE)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

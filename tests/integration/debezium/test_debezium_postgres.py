"""PostgreSQL, Debezium's connector and a table of everflow, of which two are killed again and
again: the copy is the table, row for row, and the changes lead to it.

``EVERFLOW_EXPLORE=1`` (`./run test --all`) makes 100,000 transactions, else there are 1,000.
"""

import datetime as dt
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from everflow.testing import wait_until
from integration.debezium.connect import CONVERTER, Connect
from integration.debezium.postgres import Postgres, server
from integration.debezium.shop_program import CHANGES, KEY, ROWS
from integration.lifecycle.lifecycle_cluster import Cluster, Record, last_by_key

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
]

HERE = Path(__file__).parent
TRANSACTIONS = 100_000 if os.environ.get("EVERFLOW_EXPLORE") == "1" else 1_000
KILLS = 10
SAME_S = 900.0
SEED = 71
LONG = 4_000
"""Characters of a note that PostgreSQL keeps elsewhere."""
TABLE = """
CREATE TABLE orders (
    id bigint, part int, amount numeric(12,2), exact numeric, paid timestamp, rough timestamp(3),
    at timestamptz, day date, note text, data jsonb, raw bytea, tags text[], flag boolean,
    PRIMARY KEY (id, part)
);
ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL;
"""


def literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def columns(random_: random.Random) -> dict[str, str]:
    """SQL of random values, by column; a note may be a long one."""
    note = random_.choice(["", "it's", "żółć", f"{random_.getrandbits(32):x}"])
    if random_.random() < 0.2:
        note = "".join(random_.choices("0123456789abcdef", k=LONG))
    day = dt.date(1970, 1, 1) + dt.timedelta(days=random_.randrange(-40_000, 40_000))
    at = f"{day} {random_.randrange(24):02}:{random_.randrange(60):02}:07"
    made = {
        "amount": str(Decimal(random_.randrange(-(10**12) + 1, 10**12)).scaleb(-2)),
        "exact": str(Decimal(random_.randrange(-(10**6), 10**6)).scaleb(-random_.randrange(5))),
        "paid": literal(f"{at}.{random_.randrange(10**6):06}"),
        "rough": literal(f"{at}.{random_.randrange(10**3):03}"),
        "at": literal(f"{at}.{random_.randrange(10**6):06}+03"),
        "day": literal(str(day)),
        "note": literal(note),
        "data": literal(json.dumps({"a": random_.randrange(10), "b": [None, "x"]})),
        "raw": literal("\\x" + random_.randbytes(random_.randrange(5)).hex()),
        "tags": f"ARRAY[{literal(note[:3])}, NULL]::text[]",
        "flag": random_.choice(["true", "false"]),
    }
    return {name: "NULL" if random_.random() < 0.1 else one for name, one in made.items()}


def statement(random_: random.Random) -> str:
    id_, part = random_.randrange(1, 200), random_.randrange(3)
    values = columns(random_)
    where = f"WHERE id = {id_} AND part = {part}"
    match random_.choice(["insert", "insert", "update", "update", "delete", "key"]):
        case "insert":
            names, given = ", ".join(values), ", ".join(values.values())
            changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in values)
            return (
                f"INSERT INTO orders (id, part, {names}) VALUES ({id_}, {part}, {given}) "
                f"ON CONFLICT (id, part) DO UPDATE SET {changed};"
            )
        case "update":  # most of them leave the note alone
            some = random_.sample(sorted(values), random_.randrange(1, 4))
            return f"UPDATE orders SET {', '.join(f'{n} = {values[n]}' for n in some)} {where};"
        case "key":  # Debezium writes a deletion and an insertion, which needs the whole row
            new = f"id = {id_ + 1000} AND part = {part}"
            free = f"AND NOT EXISTS (SELECT 1 FROM orders WHERE {new})"
            return f"UPDATE orders SET id = {id_ + 1000}, note = note || '' {where} {free};"
    return f"DELETE FROM orders {where};"


def transaction(random_: random.Random) -> str:
    inside = "\n".join(statement(random_) for _ in range(random_.randrange(1, 6)))
    end = "ROLLBACK" if random_.random() < 0.1 else "COMMIT"
    return f"BEGIN;\n{inside}\n{end};\n"


# --- what there is --------------------------------------------------------------------------------


def source_rows(postgres: Postgres) -> dict[tuple[int, int], dict[str, Any]]:
    """The table, as the program's types have it."""
    found = {}
    rows = "SELECT encode(convert_to(row_to_json(o)::text, 'UTF8'), 'hex') FROM orders o"
    for line in postgres.run(f"COPY ({rows}) TO STDOUT;").splitlines():
        row = json.loads(bytes.fromhex(line), parse_float=Decimal)
        found[row["id"], row["part"]] = typed(row)
    return found


def typed(row: dict[str, Any]) -> dict[str, Any]:
    def made(name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in ("amount", "exact"):
            return Decimal(value)
        if name in ("paid", "rough", "at"):
            return dt.datetime.fromisoformat(value)
        if name == "day":
            return dt.date.fromisoformat(value)
        if name == "raw":
            return bytes.fromhex(value.removeprefix("\\x"))
        return value

    known = [field.name for field in ROWS.type]
    return {name: made(name, row[name]) for name in known if name != "data"} | {"data": row["data"]}


def read_row(row: Any) -> Any:
    """``data`` as a value: PostgreSQL's text of jsonb is one of many."""
    if row is None:
        return None
    return {**row, "data": None if row["data"] is None else json.loads(row["data"])}


def key_of(data: bytes | None) -> tuple[int, int]:
    found = KEY.decode(data)
    return found["id"], found["part"]


@dataclass
class Instance:
    """The program in a process, killed with all that it started."""

    folder: Path
    given: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "instance.log"

    def start(self) -> None:
        command = [sys.executable, str(HERE / "shop_program.py"), json.dumps(self.given)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=log)

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is None:
            return
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(30)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.process = None

    def history(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-40:]


@dataclass
class Shop:
    postgres: Postgres
    cluster: Cluster
    connect: Connect
    instance: Instance

    def copy(self) -> dict[tuple[int, int], Any]:
        found = last_by_key(self.cluster.read(f"{self.cluster.prefix}-copy"))
        return {key_of(key): read_row(ROWS.decode(value)) for key, value in found.items()}

    def changes(self) -> list[Record]:
        return self.cluster.read(f"{self.cluster.prefix}-changes")

    def until_same(self) -> None:
        wanted = source_rows(self.postgres)

        def same() -> bool:
            assert self.instance.alive(), "\n".join(self.instance.history())
            return self.copy() == wanted

        def told() -> list[str]:
            found = self.copy()
            keys = wanted.keys() | found.keys()
            other = [key for key in keys if wanted.get(key) != found.get(key)]
            pairs = [(wanted.get(key), found.get(key)) for key in other[:5]]
            shown = [f"{one!r:.300}\n  {another!r:.300}" for one, another in pairs]
            history = [*self.instance.history(), *self.connect.history()]
            return [f"{len(other)} differ: {other[:5]}", *shown, *history]

        wait_until(same, SAME_S, "the copy to be the table", told)


@pytest.fixture(params=["with-schemas", "without"])
def shop(
    request: pytest.FixtureRequest, cluster: Cluster, bootstrap: str, tmp_path: Path
) -> Iterator[Shop]:
    schemas = request.param == "with-schemas"
    prefix = cluster.prefix
    with server() as postgres:
        postgres.run(TABLE)
        postgres.run("".join(transaction(random.Random(SEED + one)) for one in range(50)))
        cluster.make(f"{prefix}.public.orders", partitions=2)
        cluster.make(f"{prefix}-copy", f"{prefix}-changes", partitions=2)
        connector = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": str(postgres.port),
            "database.user": "shop",
            "database.password": "shop",
            "database.dbname": "postgres",
            "topic.prefix": prefix,
            "table.include.list": "public.orders",
            "publication.autocreate.mode": "filtered",
            "slot.name": "everflow",
            "poll.interval.ms": "50",
            "key.converter": CONVERTER,
            "key.converter.schemas.enable": "false",
            "value.converter": CONVERTER,
            "value.converter.schemas.enable": str(schemas).lower(),
        }
        connect = Connect(tmp_path / "connect", bootstrap, connector)
        settings = {
            "application_id": f"{prefix}-app",
            "bootstrap_servers": bootstrap,
            "processing_guarantee": "exactly_once_v2",
            "session_timeout_ms": 6_000,
            "num_stream_threads": 1,
            "state_dir": str(tmp_path / "state"),
        }
        given = {"prefix": prefix, "schemas": schemas, "settings": settings}
        instance = Instance(tmp_path, given)
        try:
            connect.start()
            instance.start()
            yield Shop(postgres, cluster, connect, instance)
        finally:
            instance.kill()
            connect.kill()


def test_the_copy_is_the_table_whoever_is_killed(shop: Shop) -> None:
    shop.until_same()
    random_ = random.Random(SEED)
    for kill in range(KILLS):
        for _ in range(0, TRANSACTIONS // KILLS, 100):
            shop.postgres.run("".join(transaction(random_) for _ in range(100)))
        if kill == KILLS // 2:  # the program does not name it, and goes on
            shop.postgres.run("ALTER TABLE orders ADD COLUMN extra text DEFAULT 'x';")
        shop.instance.kill()
        if kill % 2:
            shop.connect.kill()
            shop.connect.start()
        shop.instance.start()
    shop.until_same()
    rows: dict[Any, Any] = {}
    tombstones: set[Any] = set()
    for record in shop.changes():
        key, change = key_of(record.key), CHANGES.decode(record.value)
        if change is None:
            assert rows[key] is None
            tombstones.add(key)
            continue
        before, after = (read_row(change[side]) for side in ("before", "after"))
        assert before == rows.get(key), key
        assert change["op"] == ("d" if after is None else "c" if before is None else "u")
        rows[key] = after
        tombstones.discard(key)
    assert {key for key, row in rows.items() if row is None} == tombstones
    there = {key: row for key, row in rows.items() if row is not None}
    assert there == source_rows(shop.postgres)

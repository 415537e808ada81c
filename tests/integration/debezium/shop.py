"""A table of orders and what happens to it: transactions drawn from a seed, its rows as the
program's types have them, and the program in a process that is killed."""

import datetime as dt
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from integration.debezium.connect import CONVERTER
from integration.debezium.postgres import USER, Postgres
from integration.debezium.shop_program import CHANGES, KEY, ROWS
from integration.lifecycle.lifecycle_cluster import Record, last_by_key

HERE = Path(__file__).parent
IDS, MOVED = 200, 1_000_000
"""How many ids there are; a row whose key changes has one that is greater by so much."""
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
COPIES = f"""
{TABLE}
CREATE TABLE orders_history (
    LIKE orders, valid_from timestamptz, valid_to timestamptz, is_current boolean,
    UNIQUE (id, part, valid_from)
);
CREATE UNIQUE INDEX ON orders_history (id, part) WHERE is_current;
"""
CURRENT = "(SELECT * FROM orders_history WHERE is_current)"
UNLINKED = """
SELECT count(*) FROM (
    SELECT *, lead(valid_from) OVER (PARTITION BY id, part ORDER BY valid_from) AS next
    FROM orders_history) AS versions
WHERE valid_from >= valid_to OR is_current <> (valid_to IS NULL) OR is_current IS NULL
OR (next IS NOT NULL AND (next >= valid_to) IS NOT TRUE);
"""
"""Versions that begin before the one before ends, end before they begin, or are current and not the
last."""
DIGEST = """
SELECT count(*) || ' rows ' || coalesce(md5(string_agg(text, ',' ORDER BY id, part)), '') FROM (
    SELECT id, part, (id, part, amount, exact::numeric(20,4), paid, rough, at, day, note, data,
    raw, tags, flag)::text AS text FROM orders) AS all_of_them;
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


def statement(random_: random.Random, ids: int) -> str:
    id_, part = random_.randrange(1, ids), random_.randrange(3)
    values = columns(random_)
    where = f"WHERE id = {id_} AND part = {part}"
    match random_.choice(["insert", "insert", "update", "update", "delete", "key", "many"]):
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
        case "many":
            near = f"WHERE id BETWEEN {id_} AND {id_ + 2} AND part = {part}"
            if random_.random() < 0.1:
                return f"DELETE FROM orders {near};"
            return f"UPDATE orders SET flag = NOT flag, day = day + 1 {near};"
        case "key":  # Debezium writes a deletion and an insertion, which needs the whole row
            new = f"id = {id_ + MOVED} AND part = {part}"
            free = f"AND NOT EXISTS (SELECT 1 FROM orders WHERE {new})"
            return f"UPDATE orders SET id = {id_ + MOVED}, note = note || '' {where} {free};"
    return f"DELETE FROM orders {where};"


def transaction(random_: random.Random, ids: int = IDS) -> str:
    """One to five statements, of which one in ten is rolled back. ``ids``: how many there are."""
    inside = "\n".join(statement(random_, ids) for _ in range(random_.randrange(1, 6)))
    end = "ROLLBACK" if random_.random() < 0.1 else "COMMIT"
    return f"BEGIN;\n{inside}\n{end};\n"


# --- what there is --------------------------------------------------------------------------------


def source_rows(postgres: Postgres, table: str = "orders") -> dict[tuple[int, int], Any]:
    """The table, as the program's types have it."""
    found = {}
    rows = f"SELECT encode(convert_to(row_to_json(o)::text, 'UTF8'), 'hex') FROM {table} o"
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


def dsn(postgres: Postgres) -> str:
    return f"host=127.0.0.1 port={postgres.port} user={USER} dbname=postgres"


def connector(postgres: Postgres, prefix: str, schemas: bool) -> dict[str, str]:
    """Debezium's settings; ``schemas``: each value has its schema in front."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": USER,
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


def table_of(records: Iterable[Record]) -> dict[tuple[int, int], Any]:
    """The table that a topic of rows stands for."""
    found = last_by_key(records)
    rows = ROWS.decode_array(pa.array(list(found.values()), pa.binary())).to_pylist()
    return {key_of(key): read_row(row) for key, row in zip(found, rows, strict=True)}


def folded(records: list[Record]) -> tuple[dict[tuple[int, int], Any], list[tuple[int, int]]]:
    """The table to which changes lead, and the keys of changes that do not follow from the ones
    before: another row before, another op, no tombstone behind a deletion or one of its own."""
    values = CHANGES.decode_array(pa.array([one.value for one in records], pa.binary()))
    rows: dict[tuple[int, int], Any] = {}
    open_: set[tuple[int, int]] = set()
    wrong = []
    for record, change in zip(records, values.to_pylist(), strict=True):
        key = key_of(record.key)
        if change is None:
            if key not in open_:
                wrong.append(key)
            open_.discard(key)
            continue
        before, after = (read_row(change[side]) for side in ("before", "after"))
        op = "d" if after is None else "c" if before is None else "u"
        if before != rows.get(key) or change["op"] != op or key in open_:
            wrong.append(key)
        if after is None:
            rows.pop(key, None)
            open_.add(key)
        else:
            rows[key] = after
    return rows, [*wrong, *open_]


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

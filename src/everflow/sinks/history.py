"""SQL that keeps a row for each version of a key: a slowly changing dimension of type 2 (note 071).

The changes of a batch are in two tables of the session: `ROWS` has rows, as the target's, `GONE`
has deletions. Each has its time in ``valid_from`` and its number in the batch. `CHANGES` is made of
them: what counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from everflow.sinks.batch import SinkBatch

FROM, TO, CURRENT = "valid_from", "valid_to", "is_current"
ADDED = (FROM, TO, CURRENT)
"""Columns that a table of versions has beside those of the rows."""
ROWS, GONE, CHANGES = "everflow_rows", "everflow_gone", "everflow_changes"
NUMBER = "ef_n"
_TIME = pa.timestamp("ms", "UTC")


def schema_of(rows: pa.Schema) -> pa.Schema:
    """What the target has to have."""
    return pa.schema([*rows, (FROM, _TIME), (TO, _TIME), (CURRENT, pa.bool_())])


def staged(batch: SinkBatch) -> pa.Table:
    """The rows with their times, as they would be if each were the current version."""
    count = len(batch.rows)
    rows = batch.rows.append_column(FROM, pa.array(batch.timestamps, pa.int64()).cast(_TIME))
    rows = rows.append_column(CURRENT, pa.array([True] * count))
    return rows.append_column(NUMBER, pa.array(range(count), pa.int64()))


def preparing(table: str, key: Sequence[str]) -> tuple[str, ...]:
    """``key``: its columns, in quotes; so are those of the other functions."""
    keys = ", ".join(key)
    return (
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {ROWS} (LIKE {table} INCLUDING DEFAULTS "
        f"INCLUDING CONSTRAINTS INCLUDING IDENTITY, {NUMBER} bigint) ON COMMIT DELETE ROWS",
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {GONE} ON COMMIT DELETE ROWS AS "
        f"SELECT {keys}, {FROM}, 0::bigint AS {NUMBER} FROM {table} WITH NO DATA",
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {CHANGES} ON COMMIT DELETE ROWS AS "
        f"SELECT {keys}, {FROM} AS ef_at, {FROM} AS ef_first, 0::bigint AS {NUMBER}, "
        f"true AS ef_gone, true AS ef_new FROM {table} WITH NO DATA",
    )


def versions(table: str, key: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The statements that bring the versions in ``table`` to where the changes lead. ``names``: all
    columns of the rows.

    A change takes effect at its time, or at the latest one that its key's versions have, if that is
    later: time does not go back. Of several at one time the last one counts, whichever batch each
    was in. A change to what the version before it has makes no version. So a repetition of the last
    changes, in their order and with their times, ends where they ended.
    """
    keys, others = ", ".join(key), ", ".join(one for one in names if one not in key)
    of_target = ", ".join(f"target.{one}" for one in key)
    of_ended = ", ".join(f"ended.{one}" for one in key)
    of_rows = ", ".join(f"{ROWS}.{one}" for one in names)
    return (
        f"""
        INSERT INTO {CHANGES}
        WITH given AS (
            SELECT {keys}, {FROM} AS ef_own, {NUMBER}, false AS ef_gone,
                   ROW({others})::text AS ef_had
            FROM {ROWS}
            UNION ALL SELECT {keys}, {FROM}, {NUMBER}, true, NULL FROM {GONE}
        ), known AS (
            SELECT {keys}, max(coalesce({TO}, {FROM})) AS ef_latest
            FROM {table} WHERE ({keys}) IN (SELECT {keys} FROM given) GROUP BY {keys}
        ), timed AS (
            SELECT {keys}, {NUMBER}, ef_gone, ef_had, max(greatest(ef_own, ef_latest)) OVER (
                PARTITION BY {keys} ORDER BY {NUMBER}) AS ef_at
            FROM given LEFT JOIN known USING ({keys})
        ), kept AS (
            SELECT DISTINCT ON ({keys}, ef_at) * FROM timed ORDER BY {keys}, ef_at, {NUMBER} DESC
        ), firsts AS (
            SELECT {keys}, min(ef_at) AS ef_first FROM kept GROUP BY {keys}
        ), before AS (
            SELECT {keys}, ROW({others})::text AS ef_before
            FROM {table} JOIN firsts USING ({keys})
            WHERE {FROM} < ef_first AND ({TO} IS NULL OR {TO} = ef_first)
        )
        SELECT {keys}, ef_at, ef_first, {NUMBER}, ef_gone, ef_had IS DISTINCT FROM CASE
            WHEN ef_at = ef_first THEN ef_before
            ELSE lag(ef_had) OVER (PARTITION BY {keys} ORDER BY ef_at)
        END
        FROM kept JOIN firsts USING ({keys}) LEFT JOIN before USING ({keys})
        """,
        # What begins where the first change takes effect is what this one replaces.
        f"""
        DELETE FROM {table} WHERE ({keys}, {FROM}) IN (SELECT {keys}, ef_first FROM {CHANGES})
        """,
        # What ended there ends with the first change that makes it another, or goes on.
        f"""
        UPDATE {table} AS target SET {TO} = ended.ef_at, {CURRENT} = ended.ef_at IS NULL
        FROM (
            SELECT {keys}, ef_first, min(ef_at) FILTER (WHERE ef_new) AS ef_at
            FROM {CHANGES} GROUP BY {keys}, ef_first
        ) AS ended
        WHERE ({of_target}) = ({of_ended}) AND target.{FROM} < ended.ef_first
        AND (target.{TO} IS NULL OR target.{TO} = ended.ef_first)
        AND target.{TO} IS DISTINCT FROM ended.ef_at
        """,
        f"""
        INSERT INTO {table} ({", ".join(names)}, {FROM}, {TO}, {CURRENT})
        SELECT {of_rows}, ef_at, ef_until, ef_until IS NULL
        FROM (
            SELECT {NUMBER}, ef_gone, ef_at,
                   lead(ef_at) OVER (PARTITION BY {keys} ORDER BY ef_at) AS ef_until
            FROM {CHANGES} WHERE ef_new
        ) AS made JOIN {ROWS} USING ({NUMBER}) WHERE NOT ef_gone
        """,
    )

"""What Spark's analyser says of a Column, kept from one start to the next (design note 017).

Until the first Column is analysed Spark loads and compiles its SQL: a third of a start's processor
time, for the same answers as the last time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import Column

from everflow.jvm.jars import cache_root
from everflow.spark.session import SQL_SETTINGS, plain_context, sql_runs

MOST = 2_000
"""Files; of more the older half is deleted."""
MOST_OF_ONE = 500
"""That one process adds: a program has some dozen Columns, what makes up thousands is a test."""

_added = itertools.count()


@dataclass(frozen=True)
class Analysis:
    """Of one Column over one schema. ``schema``: of the selection, as Spark's JSON; ``plan``: the
    analysed plan, as Spark's JSON; ``sql``: the Column's text once it is resolved."""

    schema: str
    plan: str
    sql: str
    deterministic: bool


def key_of(column: Column, schema: str) -> str | None:
    """What the analysis follows from: the Column as Java writes it, not as it reads (``1`` may be a
    text or a number), without the line of the program; the ``schema`` that it is resolved against,
    Spark's version and our settings.

    None where more could matter: in a Spark of the user's, or with extensions or catalogs of his,
    and for a Column that Java cannot write.
    """
    context = plain_context()
    if context is None:
        return None
    try:
        java: Any = column._jc
        jvm: Any = context._jvm
        written = bytes(jvm.org.apache.spark.util.Utils.serialize(java.node().normalized()))
    except (Py4JError, AttributeError):
        return None
    settings = json.dumps([pyspark.__version__, sorted(SQL_SETTINGS.items()), schema])
    return hashlib.sha256(settings.encode() + written).hexdigest()


def kept(key: str | None) -> Analysis | None:
    """What was said of it before; None where nothing is known, and where Spark's SQL runs already:
    then it is asked, and says what there is to say about the user's own session."""
    if key is None or sql_runs():
        return None
    try:
        found = json.loads(_file(key).read_text())
        return Analysis(**found) if _is_whole(found) else None
    except (OSError, ValueError, TypeError):
        return None


def keep(key: str | None, analysis: Analysis) -> None:
    """For the next start. A folder that cannot be written is no failure."""
    if key is None or next(_added) >= MOST_OF_ONE:
        return
    file = _file(key)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(file.parent)
        handle, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as out:
            json.dump(asdict(analysis), out)
        os.replace(name, file)


def _file(key: str) -> Path:
    return cache_root() / "columns" / f"{key}.json"


def _is_whole(found: object) -> bool:
    return (
        isinstance(found, Mapping)
        and all(isinstance(found.get(name), str) for name in ("schema", "plan", "sql"))
        and isinstance(found.get("deterministic"), bool)
    )


def _make_room(folder: Path) -> None:
    files = list(folder.iterdir())
    if len(files) > MOST:
        for file in sorted(files, key=lambda each: each.stat().st_mtime)[: len(files) // 2]:
            file.unlink(missing_ok=True)

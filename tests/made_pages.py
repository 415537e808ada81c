"""Pages of the guide with tables that are made of the code: of its settings, commands and names, or
of what operators do in the test driver (`semantics.families`). After a change of a setting's text,
of a foreign name or of an operator, run it:

.venv/bin/python tests/made_pages.py
"""

import re
from collections.abc import Mapping
from pathlib import Path

import command_line_page
import metrics_page
from configuration_page import keys, prefixes
from everflow.foreign_names import KAFKA_STREAMS, PYSPARK
from foreign_names_tables import tables
from semantics import families
from semantics.probes import seen, table
from semantics.stream_times import stream_times

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide"
PAGES: Mapping[str, Mapping[str, str]] = {
    "command-line.md": {"commands": command_line_page.tables()},
    "metrics.md": {"figures": metrics_page.table()},
    "configuration.md": {"keys": keys(), "prefixes": prefixes()},
    "coming-from-kafka-streams.md": tables(KAFKA_STREAMS),
    "coming-from-structured-streaming.md": tables(PYSPARK),
}
"""Page -> name of a part -> its text. The page has the part between ``<!-- begin NAME -->`` and
``<!-- end NAME -->``."""


def made(page: str, parts: Mapping[str, str]) -> str:
    """``page`` with its marked parts made anew."""
    for name, part in parts.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        assert page.count(begin) == page.count(end) == 1, (
            f"the page needs one {begin.strip()} and one {end.strip()}"
        )
        before, _, rest = page.partition(begin)
        page = before + begin + part + end + rest.partition(end)[2]
    return page


def semantics(page: str) -> dict[str, str]:
    """Name of a part -> its text, of a page with families of operators; needs Spark."""
    found = seen(families.PAGES[page])
    parts = {name: table(family, found[name]) for name, family in families.PAGES[page].items()}
    return parts | ({"stream-times": stream_times()} if page == "time.md" else {})


def marked(page: str) -> list[str]:
    return re.findall(r"^<!-- begin (.*) -->$", page, re.MULTILINE)


if __name__ == "__main__":
    tables_of_families = {name: semantics(name) for name in families.PAGES}
    for name, parts in [*PAGES.items(), *tables_of_families.items()]:
        (GUIDE / name).write_text(made((GUIDE / name).read_text(), parts))

"""The code of README.md and docs/ does what the pages say. How a page says it: docs/WRITING.md.

All pages in one file, so that they share one Spark context and one broker.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from docs.page_program import BlockError, PageProgram, in_folder
from made_pages import GUIDE, made, marked, semantics
from markdown_pages import Block, blocks, page_id, pages
from semantics.families import PAGES

TEXTS = {page_id(path): path.read_text() for path in pages()}


def _needs_a_broker(page: str) -> bool:
    return re.search(r"<!-- test:.* needs=broker\b", TEXTS[page]) is not None


def _parameter(page: str) -> Any:
    return pytest.param(
        page,
        marks=[pytest.mark.spark, *([pytest.mark.broker] if _needs_a_broker(page) else [])],
        id=page,
    )


@pytest.mark.parametrize(
    "page", [_parameter(page) for page, text in TEXTS.items() if "```" in text]
)
def test_a_page_does_what_it_says(
    page: str, spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts before the first page: in a folder that stays, and what is said of a slow start
    is none of a page's output."""
    bootstrap = request.getfixturevalue("bootstrap") if _needs_a_broker(page) else None
    # Short, unlike tmp_path: sockets of Spark's workers lie in it.
    with tempfile.TemporaryDirectory(prefix="ef-") as folder, in_folder(Path(folder)):
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        program = PageProgram(Path(folder), bootstrap)
        for block in blocks(TEXTS[page], page):
            program.run(block)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```",
            r"p\.md:2: the page shows\n2\n\nand the block says\n1",
        ),
        ("```python\nprint(1)\n```", r"p\.md:2: the page shows\n\nand the block says\n1"),
        ("```python\n>>> 1 + 1\n3\n```", r"(?s)p\.md:2.*Expected:\n    3\nGot:\n    2"),
        ("```python\n\n1 / 0\n```", r'(?s)File "p\.md", line 3.*ZeroDivisionError'),
        (
            "<!-- test: raises=ValueError contains=seven -->\n```python\nint('six')\n```",
            r"ValueError.*'seven'",
        ),
        ("<!-- test: raises=KeyError -->\n```python\npass\n```", r"raised.*None"),
        ("<!-- test: run -->\n```console\n$ echo a\nb\n```", r"p\.md:3: the page shows\nb"),
        ("<!-- test: run -->\n```bash\nfalse\n```", "ended with 1"),
        ("<!-- test: run exit=3 -->\n```bash\nexit 2\n```", "ended with 2"),
    ],
)
def test_a_page_that_differs_from_its_code_is_found(page: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BlockError, match=says):
        _run(blocks(page, "p.md"), tmp_path)


def test_a_page_is_one_program_with_files_of_its_own(tmp_path: Path) -> None:
    page = """
<!-- test: file=numbers_of_page.py -->
```python
ONE = 1
```
<!-- setup
two = 2
-->
```python
from numbers_of_page import ONE
def three():
    return ONE + two
```
```python
>>> three()
3
```
<!-- test: run -->
```console
$ python -c 'import numbers_of_page as n; print(n.ONE); print("and so on")'
1
...
```
"""
    with in_folder(tmp_path):
        _run(blocks(page, "p.md"), tmp_path)


def _run(found: list[Block], folder: Path) -> None:
    program = PageProgram(folder, None)
    for block in found:
        program.run(block)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_what_the_driver_gives(page: str, spark: SparkSession) -> None:
    text, parts = (GUIDE / page).read_text(), semantics(page)
    assert set(marked(text)) == set(parts)
    assert text == made(text, parts), "run .venv/bin/python tests/made_pages.py"

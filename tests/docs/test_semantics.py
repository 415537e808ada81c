"""The guide's tables of nulls, tombstones, late and unordered records are the test driver's."""

import pytest
from pyspark.sql import SparkSession

from made_pages import GUIDE, made, marked, semantics
from semantics.families import PAGES


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_what_the_driver_gives(page: str, spark: SparkSession) -> None:
    text, parts = (GUIDE / page).read_text(), semantics(page)
    assert set(marked(text)) == set(parts)
    assert text == made(text, parts), "run .venv/bin/python tests/made_pages.py"

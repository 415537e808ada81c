"""One Spark session for the whole test run: starting one takes longer than most tests."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from everflow.spark.session import get_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return get_session()

"""Which Columns are accepted (scenarios 36 and 38), with which type, and how refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, serdes
from everflow.errors import TopologyError
from everflow.serdes.arrow_types import normal_type
from everflow.spark.expressions import _empty_frame, analyse
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import EdgeType

pytestmark = pytest.mark.spark

EDGE = EdgeType(
    pa.string(),
    normal_type(
        pa.struct(
            [
                ("a", pa.float64()),
                ("b", pa.list_(pa.int32())),
                ("at", pa.timestamp("us", "UTC")),
                ("d", pa.decimal128(9, 2)),
            ]
        )
    ),
)


@pytest.fixture(autouse=True)
def session() -> None:
    get_session()


ACCEPTED: dict[str, tuple[Callable[[], Column], pa.DataType, set[str]]] = {
    "arithmetic": (lambda: F.col("value.a") + 1, pa.float64(), {"value"}),
    "struct": (lambda: F.col("value"), EDGE.value, {"value"}),
    "instant": (lambda: F.col("value.at"), pa.timestamp("us", "UTC"), {"value"}),
    "decimal": (lambda: F.col("value.d"), pa.decimal128(9, 2), {"value"}),
    "metadata": (
        lambda: F.concat_ws("-", "topic", "partition", "offset"),
        pa.string(),
        {"topic", "partition", "offset"},
    ),
    "time": (lambda: F.timestamp_millis("timestamp"), pa.timestamp("us", "UTC"), {"timestamp"}),
    "headers": (lambda: F.size("headers"), pa.int32(), {"headers"}),
    "higher-order": (
        lambda: F.transform("value.b", lambda x: x + 1),
        pa.list_(pa.int32()),
        {"value"},
    ),
    "constant": (lambda: F.lit(True), pa.bool_(), set()),
    "hash": (lambda: F.sha2(F.col("key"), 256), pa.string(), {"key"}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    column, type_, uses = ACCEPTED[name]
    found = analyse(column(), EDGE, None)
    assert found.type == type_
    assert found.uses == uses


def plain_udf() -> Column:
    return F.udf(lambda x: 1, "int")("value.a")


def grouped_udf() -> Column:
    def mean(series: pd.Series) -> float:
        return float(series.mean())

    made: Column = vars(F)["pandas_udf"](mean, "double")("value.a")
    return made


def test_a_column_says_whether_it_calls_functions() -> None:
    assert analyse(F.when(F.col("value.a") > 0, plain_udf()), EDGE, None).calls
    assert not analyse(F.col("value.a"), EDGE, None).calls


def by_key() -> object:
    return Window.partitionBy("key").orderBy("timestamp")


REFUSED: dict[str, tuple[Callable[[], Column], str]] = {
    # scenario 36: the same values in every batch, or other ones in a re-run
    "rand": (lambda: F.rand(), "non-deterministic.*derive it from"),
    "rand inside": (lambda: F.transform("value.b", lambda x: x + F.rand()), "non-deterministic"),
    "uuid": (lambda: F.uuid(), r"uuid\(\).*topic, partition and offset"),
    "shuffle": (lambda: F.shuffle("value.b"), "shuffle"),
    "java_method": (
        lambda: F.java_method(F.lit("java.util.UUID"), F.lit("randomUUID")),
        "non-deterministic",
    ),
    "current_timestamp": (lambda: F.current_timestamp(), r"current time.*F\.col\('timestamp'\)"),
    "now": (lambda: F.now(), "current time"),
    "localtimestamp": (lambda: F.localtimestamp(), "current time"),
    "unix_timestamp": (lambda: F.unix_timestamp(), "current time"),
    "current_date inside": (
        lambda: F.datediff(F.current_date(), F.col("value.at")),
        "current date",
    ),
    "current_time": (lambda: F.current_time(), "current time"),
    "non-deterministic udf": (
        lambda: F.udf(lambda x: 1, "int").asNondeterministic()("value.a"),
        "non-deterministic.*derive it from",
    ),
    "udf over groups": (grouped_udf, r"aggregate.*group_by\("),
    # scenario 38: silently sorts, multiplies rows, restarts per batch
    "row_number": (
        lambda: F.row_number().over(by_key()),  # type: ignore[arg-type]
        r"window function such as row_number\(\)",
    ),
    "row_number without over": (lambda: F.row_number(), "window function"),
    "lag": (lambda: F.lag("timestamp").over(by_key()), "window function"),  # type: ignore[arg-type]
    "sum over": (lambda: F.sum("offset").over(by_key()), "aggregate"),  # type: ignore[arg-type]
    "window": (
        lambda: F.window(F.timestamp_millis("timestamp"), "1 hour"),
        r"F\.window\(\).*windowed_by",
    ),
    "sliding window": (
        lambda: F.window(F.timestamp_millis("timestamp"), "1 hour", "10 minutes"),
        "windowed_by",
    ),
    "session_window": (
        lambda: F.session_window(F.timestamp_millis("timestamp"), "1 hour"),
        "windowed_by",
    ),
    "monotonically_increasing_id": (
        lambda: F.monotonically_increasing_id(),
        "restarts in every batch",
    ),
    "spark_partition_id": (lambda: F.spark_partition_id(), "non-deterministic"),
    # more than one row in, or another number of rows out
    "sum": (lambda: F.sum("value.a"), r"an aggregate.*group_by\(\.\.\.\)\.aggregate"),
    "count distinct": (lambda: F.count_distinct("key"), "an aggregate"),
    "explode": (lambda: F.explode("value.b"), "generator.*flat_map"),
    "explode inside": (lambda: F.explode("value.b") + 1, "generator.*flat_map"),
    "subquery": (lambda: get_session().range(1).select(F.max("id")).scalar(), "a subquery"),
    "exists": (lambda: get_session().range(1).exists(), "a subquery"),
    "several columns": (lambda: F.col("value.*"), r"4 columns.*F\.struct"),
    "another frame's column": (lambda: get_session().range(1)["id"], "columns: key string"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    column, message = REFUSED[name]
    with pytest.raises(TopologyError, match=message) as caught:
        analyse(column(), EDGE, "app.py:7")
    assert caught.value.where == "app.py:7"
    assert "exception" not in capfd.readouterr().err.lower()


def test_expected_type() -> None:
    with pytest.raises(TopologyError, match=r"boolean.*\.cast\('boolean'"):
        analyse(F.col("value.a"), EDGE, None, expected=pa.bool_())


def test_frames_are_made_once_per_edge_type() -> None:
    analyse(F.col("key"), EDGE, None)
    before = _empty_frame.cache_info()
    analyse(F.col("value.a"), EDGE, None)
    after = _empty_frame.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


RULE = """
    package everflow.test;
    import org.apache.spark.sql.catalyst.plans.logical.Distinct;
    import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
    import org.apache.spark.sql.catalyst.trees.TreeNode;

    public class Adds extends org.apache.spark.sql.catalyst.rules.Rule {
      public TreeNode apply(TreeNode plan) {
        return plan instanceof Distinct ? plan : new Distinct((LogicalPlan) plan);
      }
    }
"""


@pytest.fixture
def _rule(spark: SparkSession) -> Iterator[None]:
    """The optimiser has a rule that adds a plan node, as an extension of the user's may have."""
    session = get_session()
    jvm: Any = session._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(RULE)
    added = compiler.getClassLoader().loadClass("everflow.test.Adds").getConstructors()[0]
    nothing = session.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
    rules = jvm.java.util.ArrayList()
    experimental = session._jsparkSession.experimental()
    before = experimental.extraOptimizations()
    rules.add(added.newInstance(nothing))
    getattr(experimental, "extraOptimizations_$eq")(jvm.PythonUtils.toSeq(rules))
    yield
    getattr(experimental, "extraOptimizations_$eq")(before)


def shown() -> Column:
    return F.udf(str, StringType(), useArrow=True)("value")


@pytest.mark.usefixtures("_rule")
@pytest.mark.parametrize("column", [lambda: F.reverse("value"), shown], ids=["Column", "function"])
def test_another_plan_node_is_refused_with_its_line_and_the_cure(column: Any) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    stream.map_values(column()).to("out")
    topology = builder.build()
    with pytest.raises(TopologyError) as refused:
        TopologyTestDriver(topology)
    assert refused.value.code == "EF-TOPOLOGY"
    assert refused.value.where is not None
    assert refused.value.where.startswith(f"{__file__}:")
    said = str(refused.value)
    assert "plan node Distinct" in said
    assert "spark.sql.extensions" in said
    assert "map_values(function" in said

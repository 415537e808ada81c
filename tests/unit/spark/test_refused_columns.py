"""Columns that Spark's code cannot be called for are refused, with the line and the cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, serdes
from everflow.errors import TopologyError
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

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

"""Columns of the user's, computed on Arrow exactly as Spark computes them (note 016). Pure.

`computation` has the kernels, each exactly one of Spark's expressions, puts some of them together
and runs them over the columns of a batch; `everflow.spark.expressions` translates Spark's
expressions to them. `key_partitions` spreads keys over partitions. May import layer 0 and Arrow.
"""

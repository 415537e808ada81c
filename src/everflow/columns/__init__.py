"""Columns of the user's, computed on Arrow exactly as Spark computes them (note 016). Pure.

`everflow.spark.expressions` translates Spark's expressions to the kernels of `computation`;
`key_partitions` spreads keys over partitions. May import layer 0 and Arrow.
"""

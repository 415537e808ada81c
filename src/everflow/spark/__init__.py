"""All that speaks to Spark.

Starting it: `later`, `session`, `connector`, `jvm_launch`, `jvm_output`, `foreign` (a Spark that
was there before), `daemon` (what the Python workers import before they fork). Computing:
`expressions` asks what a Column means, `segments` makes the plan's projections, `source` reads
offset ranges, `job` runs a micro-batch; `local_run` does it for the test driver.
May import layers 0 and 1, and pyspark. The driver runs it; only `daemon` is of the workers.
"""

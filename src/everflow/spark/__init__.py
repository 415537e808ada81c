"""All that speaks to Spark.

Starting it: the package `launch` (its processes), `session` (also in a Spark that was there
before). Columns: `expressions` asks what a Column means and translates it to Arrow,
`columns` has Spark's code or the user's functions compute it. `job` hosts a stream thread's
worker.
May import layers 0 and 1, and pyspark. The driver runs it; only `launch.daemon` is of the workers.
"""

"""All that speaks to Spark.

Starting it: the room `launch` (its processes), `later`, `session`, `foreign` (a Spark that was
there before). Computing: `expressions` asks what a Column means, `segments` makes Catalyst's
projections, `column_service` computes them without a job. `job` hosts a stream thread's worker.
May import layers 0 and 1, and pyspark. The driver runs it; only `launch.daemon` and
`launch.handover` are of the workers.
"""

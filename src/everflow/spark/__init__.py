"""All that speaks to Spark.

Starting it: `later`, `session`, `jvm_ahead`, `jvm_launch`, `jvm_output`, `foreign` (a Spark that
was there before), `daemon` (what the Python workers import before they fork). Computing:
`expressions` asks what a Column means, `segments` makes the plan's projections, `column_service`
computes them without a job, `job` and `job_columns` in one.
May import layers 0 and 1, and pyspark. The driver runs it; only `daemon` is of the workers.
"""

"""All that speaks to Spark: `launch` and `session` start it, `expressions` and `columns` analyse,
translate and compute Columns, `job` hosts a stream thread's worker.

May import layer 0, topology, travel and pyspark. The driver runs it; only `launch.daemon` is of the
workers.
"""

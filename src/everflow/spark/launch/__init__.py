"""Launching Spark's processes: its JVM, and the daemon that its Python workers are forks of.

`jvm_launch` launches the JVM, also before anybody asks for it. `daemon` is what Spark launches for
its workers; another one that `everflow.spark.job` let import beside Spark's start takes its place.
May import layer 0, and pyspark. The driver runs it; `daemon` is of the workers.
"""

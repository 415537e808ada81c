"""Launching Spark's processes: its JVM, and the daemon that its Python workers are forks of.

May import layer 0, and pyspark. The driver runs it; `daemon` is of the workers.
"""

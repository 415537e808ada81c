"""Launching Spark's processes: its JVM, and the daemon that its Python workers are forks of.

`jvm_launch` is around the launch of the JVM, `jvm_ahead` launches it before anybody asks, and
`jvm_output` reads what it says. `daemon` is what Spark launches for its workers; `daemon_ahead`
lets another one import beside Spark's start, which takes its place by `handover`.
May import layer 0, and pyspark. The driver runs it; `daemon` and `handover` are of the workers.
"""

"""The processor API: what a user's processor is given, and the operator that runs it.

Design note 023. A processor is made anew for each task and micro-batch: what has to last is in its
stores. `processor` is what users write, `context` and `stores` what it is given, `forwarding` makes
columns of what it hands on, `process` is its spec; `together` runs those that share stores, each of
them `running`, and `table_stores` are tables as they read them (note 040).
May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

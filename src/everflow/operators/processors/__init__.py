"""The processor API: what a user's processor is given, and the operator that runs it.

Design note 023. A processor is made anew for each task and micro-batch: what has to last is in its
stores. `processor` is what users write, with the context that it is given, `stores` what else it is
given; `process` is its spec and runs it, with those that share its stores (note 040).
May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

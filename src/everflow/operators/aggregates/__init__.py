"""Aggregates of groups: built-in ones as columns, functions record by record, in every window kind.

May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

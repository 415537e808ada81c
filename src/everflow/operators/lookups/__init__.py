"""Joins whose records may wait for what they look up (design note 027).

`waiting_room` holds records until their entry is there or their time is over; `lookup_join` asks a
table of the same tasks, or a global one; `loaded_rows` makes a store's entries of a DataFrame's
rows. May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

from everflow.operators.lookups.lookup_join import GlobalLookupJoin, LookupJoin
from everflow.operators.lookups.waiting_room import WaitingRoom

__all__ = ["GlobalLookupJoin", "LookupJoin", "WaitingRoom"]

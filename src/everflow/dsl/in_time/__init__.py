"""Tables that keep their history, and joins as of a time.

`versioned_tables` says what ``Materialized(history=)`` makes of a table, and what reads only its
latest values; `timed_joins` has ``join_asof`` and ``join_interval``.
May import what `everflow.dsl` may.
"""

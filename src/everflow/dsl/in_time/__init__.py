"""Tables that keep their history, and joins as of a time.

`versioned_tables` says what ``Materialized(history=)`` makes of a table, and what reads only its
latest values; `timed_joins` has ``join_asof`` and ``join_interval``. `table_updates` tells what
entries were, `held_rows` what a table without a store holds (note 035).
May import what `everflow.dsl` may.
"""

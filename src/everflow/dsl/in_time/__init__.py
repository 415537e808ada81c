"""Tables that keep their history, and joins as of a time.

`versioned_tables` says what ``history=`` makes of a table, and what reads only its latest values.
May import what `everflow.dsl` may.
"""

"""What streams look records up in: `global_tables`, and joins with them (design note 026).

`lookup_joins` are joins with a table whose records may wait for their entry (027).

May import what `everflow.dsl` may.
"""

"""What operators are told beside names and serdes.

`materialized`: options of a store. May import what `everflow.dsl` may.
"""

"""What streams look records up in: `global_tables`, and joins with them (design note 026).

May import what `everflow.dsl` may.
"""

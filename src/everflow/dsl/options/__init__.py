"""What operators are told beside names and serdes.

`materialized`: options of a store; `stores`: declares those of processors. May import what
`everflow.dsl` may.
"""

"""What users write: streams, tables, groups, and the builder that they are made with.

`streams_builder` begins a program; `streams` has the classes of streams, tables and groups. Their
methods call `lowering`, whose functions check Columns and Python functions (`expressions`), and
append nodes to `graph_builder`, which freezes them into a `topology.program.Topology`. A module
imports those below it alone: `streams_builder`, `streams`, `lowering`, `graph_builder`, `stores`
(what operators take), `expressions`, `key_cures` (what errors say of keys that do not fit).
May import layer 0, operators, topology, `state.store`, travel, and spark's session and expressions
(what does this Column mean?). It runs where the program is built.
"""

from everflow.spark.session import stand_in_for_columns

stand_in_for_columns()  # a module may have Columns above its first builder

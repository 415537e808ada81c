"""What users write: streams, tables, groups, and the builder that they are made with.

`streams_builder` begins a program; `kstream`, `ktable`, `grouped` and `branched` are its words. A
word checks its arguments (`expressions` for Columns, `functions` for Python functions,
`builder_call` around each) and appends nodes to `graph_builder`, which freezes them into a
`topology.program.Topology`. `in_time` has tables that keep their history, and joins as of a time.
May import layers 0 and 1, travel, and spark's session and expressions (what does this Column
mean?). It runs where the program is built.
"""

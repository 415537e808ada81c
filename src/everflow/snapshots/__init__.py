"""A store as rows in columns: one that an instance has here, or what its changelog says it was.

Read `snapshot` first: a store that is read for long is its own store in a temporary folder, copied
or folded from a changelog (`PartitionLog`, to a place of `points`). `entry_columns` decodes,
`state_reader` reads for ``everflow state`` and `read_state`, `frames` hands it to Spark,
`state_source` to Spark's workers. `query_errors`: refusals. Design note 055. May import state,
kafka and Spark's session.
"""

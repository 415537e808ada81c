"""A store as rows in columns: one that an instance has here, or what its changelog says it was.

Read `snapshot` first: a store that is read for long is always a store of its own in a temporary
folder, copied (a live one) or folded from a changelog (`changelog_state`, to a place that `points`
finds). `entry_columns` decodes, `state_reader` puts together what ``everflow state`` and
`read_state` ask for, `frames` hands it to Spark. Design note 055.
May import state, kafka and Spark's session; of runtime only the errors of queries.
"""

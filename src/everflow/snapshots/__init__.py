"""A store as rows in columns: one that an instance has here, or what its changelog says it was.

Read `snapshot` first: a store that is read for long is always a store of its own in a temporary
folder, copied (a live one) or folded from a changelog (`PartitionLog`, to a place that `points`
finds). `entry_columns` decodes, `state_reader` decides what ``everflow state`` and `read_state`
read, and reads it a partition at a time, `frames` hands it to Spark, and `state_source` lets
Spark's workers read it. `query_errors` is what reads of a store are refused with, here and by
an instance. Design note 055. May import state, kafka and Spark's session.
"""

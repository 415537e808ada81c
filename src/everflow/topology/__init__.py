"""What a program is, and how it is cut into parts that can run. Pure.

`graph`: the frozen nodes; `program`: the user's `Topology`, which is that graph and shows itself.
`subtopologies` cuts them at repartition topics, `plan` puts their operators in order, and `batches`
joins batches of records. `store_layouts` names what must be the same in all instances that run, and
in all that ever wrote a store; `describe` shows a topology.
May import layer 0 and `state.store`: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

"""What a program is, and how it is cut into parts that can run. Pure.

`graph`: the frozen nodes; `program`: the user's `Topology`, which is that graph and shows itself.
`subtopologies` cuts them at repartition topics, `plan` puts their operators in order, which
`physical_plan` names, `hops` joins batches of records and makes rows of them for the JVM, `types`
is what Arrow and Spark call a type. `fingerprint` must be the same in all instances,
`store_layouts` in all that ever wrote a store, and `offset_metadata` tells if that has room;
`describe` and `drawing` show a topology.
May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

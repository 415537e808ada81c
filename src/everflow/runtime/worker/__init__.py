"""What a Spark Python worker does outside itself.

`kafka_sink`: the commit of a micro-batch, order of steps and all, over ports; `worker_ports` makes
them of Kafka, gate and LMDB.
`resident_step`: serves micro-batches, and reads for itself. `columns` computes Columns.
`isolation` runs a batch without the records that it fails on; `set_aside` asks their handlers;
`dead_letters` writes them. `large_records`: which record was too large. `crash_points`: where
tests kill.
May import layers 0 and 1, `commit`, `step`, kafka and state; never `thread` or `tasks`, which are
the driver's. Whatever is in here or below it is pickled by name: a worker imports it at its start.
"""

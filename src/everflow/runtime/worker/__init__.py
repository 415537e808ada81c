"""What a Spark Python worker does outside itself.

`serve` reads and runs micro-batches. `decode` decodes them, `columns` computes Columns, `sink`
commits over `ports`: Kafka, the driver's gate, LMDB. `isolation` runs a batch without the records
that it fails on, `handled_records` asks their handlers, `letters` writes dead letters.
`crash_points`: where tests kill.
May import layers 0 and 1, `commit`, `step`, kafka and state; never `thread` or `tasks`, which are
the driver's. Whatever is in here or below it is pickled by name: a worker imports it at its start.
"""

"""Writing to logs: records, offsets and transactions of a micro-batch, in columns (note 019).

`record_writer` is the door, `fencing` ends what others left open. `record_encoding`,
`compression` is pure; `deliveries` and `transaction` decide what is asked of
the brokers, and only `broker_link` asks, over kafka-python's connections. `writer_settings` is what
a user can say of it. May import layers 0 and 1 and the rest of kafka but reading; of kafka only
`client_settings` knows it. Python workers and the driver (fencing) run it.
"""

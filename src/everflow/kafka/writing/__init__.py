"""Writing records, offsets and transactions of a micro-batch, in columns, by `record_writer` (note
019); only `broker_link` asks the brokers. May import layer 0 and the rest of kafka but
reading. Python workers and the driver (fencing) run it.
"""

"""Reading a log: what changelogs and inputs hold, by two engines.

`log_reader` reads a changelog's range, `range_reader` a micro-batch's, `copy_follower` follows a changelog. Each asks Kafka by
fetch requests of its own (`bulk_reader`, `stream_reader`, `bulk_follower`, over `partition_fetches` and `fetch_connection`; the
bytes are taken apart in `record_batches`), or through librdkafka (`client_reader`, `tail_reader`, `log_follower`, over `messages`).
What they hand out: `log_chunk`, `log_columns`.
May import layers 0 and 1 and the rest of kafka, which knows nothing of it. Driver and Python workers run it.
"""

"""Reading a log: what changelogs and inputs hold, through two taps.

`log_reader` reads a changelog's range, `range_reader` a micro-batch's, `copy_follower` follows a
changelog. Each chooses between the two implementations of `taps`: `fetch_tap` sends fetch requests
of its own over `fetch_connection`, and `record_batches` takes the bytes apart into
`record_columns`; `client_tap` is librdkafka. What they hand out: `log_chunk`, and `log_columns` for
a step. May import layers 0 and 1 and the rest of kafka, which knows nothing of it. Driver and
Python workers run it.
"""

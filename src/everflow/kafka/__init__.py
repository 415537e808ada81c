"""All that speaks to brokers; of it `group_channel` is driven by membership.

Asking: `admin`, `group_description`, `transactions`, with `errors` for what clients say. Writing:
`producer`. Reading: `log_reader` (a changelog's range), `copy_follower` (a copy that follows) and
`range_reader` (a resident step's input) are the ports. Behind each are a bulk reader on
`fetch_connection`, `partition_fetches` and `record_batches`, and one on librdkafka:
`client_reader`, `log_follower`, `tail_reader`.
May import layers 0 and 1, and both Kafka clients. Driver and Python workers both run it.
"""

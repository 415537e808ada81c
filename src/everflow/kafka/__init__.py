"""All that speaks to brokers; of it `group_channel` is driven by membership.

Asking: `admin`, `coordinator_questions`, `group_description`, `transactions`, with `errors`
for what clients say. Writing: `producer`. A client's set-up:
`client_settings`, `client_log`. Reading: the room `reading`.
May import layers 0 and 1, and both Kafka clients. Driver and Python workers both run it.
"""

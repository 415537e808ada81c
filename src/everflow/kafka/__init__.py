"""Connections to brokers, over kafka-python's protocol layer; membership drives `group_channel`.

Asking: `admin`; `errors` classifies the brokers' codes. Packages: `reading` and `writing`.
Settings, which have librdkafka's names: `client_settings`, `connection_settings`.
May import layer 0, and kafka-python. Driver and Python workers both run it.
"""

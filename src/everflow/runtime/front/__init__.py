"""An instance in the foreground: `KafkaStreams.run` and the commands.

`foreground` starts it, and ends it by a signal; `bounded_run` says when it ends by itself, and what
it has written by then. May import layer 0, topology, kafka, `client_state` and `drain`. It runs in
the driver.
"""

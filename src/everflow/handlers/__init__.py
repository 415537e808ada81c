"""What happens to a record that cannot be decoded, processed or written (note 041).

As in Kafka Streams (KIP-1033, KIP-1034).
`response` has what a handler of the user is told and what it may answer; `given` makes one of what
a setting names, and has the built-in ones; `outages` tells an outage from a bad record. Handlers
run in the Python workers, and in the test driver. May import layer 0.
"""

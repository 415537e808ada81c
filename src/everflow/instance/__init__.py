"""The driver's side: an instance of an application (docs/design/010-rooms.md). `kafka_streams` is
what users call; `start_up` checks the cluster, `assembly` makes the parts, `instance` joins them,
`life` starts and stops them. `commit_gate` answers a worker that asks whether its batch may commit.
Packages, lowest first: `topics`, `restore`; `tasks`; `query`; `copies`, `serving`, `thread`.
Spark's Python workers run `everflow.worker`; `everflow.protocol` has the messages between both."""

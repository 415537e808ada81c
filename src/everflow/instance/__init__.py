"""The driver's wing: an instance of an application, its stream threads, tasks and replicas.

`kafka_streams` is what users call. `start_up` checks the cluster, `assembly` makes the parts,
`instance` joins them, `life` starts and stops them. `foreground` runs an instance until a signal;
`observer` reports to dashboard and metrics; `describe` and `client_state` describe its state.
`commit_gate` answers a worker that asks whether its batch may commit.
Rooms, lowest first, each importing only rooms before it: `topics`, `restore`; `tasks`; `query`;
`copies`, `serving`, `thread`. Spark's Python workers run `everflow.worker`; `everflow.protocol` has
the messages between both. docs/design/010-rooms.md says why; the contracts in pyproject.toml check
the imports.
"""

"""The instance, and the rooms that it joins.

`kafka_streams` is what users call. `start_up` checks the cluster, `assembly` makes the parts,
`instance` joins them, `life` starts and ends them. `foreground` runs an instance until a signal;
`observer` shows it to the pages and metrics; `describe` and `client_state` say in words how it is.
The rooms, lowest first, each importing only rooms before it: `commit`, `topics`, `restore`; `step`,
`worker`; `tasks`, `copies`, `thread`, `query`. `step`, `worker` and the workers' half of `commit`
run in Spark's Python workers, the rest in the driver. docs/design/010-rooms.md says why;
the contracts in pyproject.toml hold the walls.
"""

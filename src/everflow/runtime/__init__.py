"""The instance, and the rooms that it joins.

`kafka_streams` is what the user holds; `start_up` looks at the cluster, `wiring` makes the parts
and `shutdown` ends them; `operations`, `thread_count`, `pause` and `drain` are what may be asked of
it; `client_state`, `task_status`, `task_words` and `instance_display` say how it is; `foreground`
waits for its end.
The rooms, lowest first, each importing only rooms before it: `commit`, `topics`, `restore`; `step`,
`worker`; `tasks`, `copies`, `thread`, `query`. `step`, `worker` and the workers' half of `commit`
run in Spark's Python workers, the rest in the driver. docs/design/010-rooms.md says why;
the contracts in pyproject.toml hold the walls.
"""

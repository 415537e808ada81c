"""The life of a task on an instance. May import layer 0, protocol, topology, state,
`commit_gate`, `restore` and `topics`; no kafka, which comes through ports."""

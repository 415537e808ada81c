"""The life of a task on an instance. May import layers 0 and 1, `commit_gate`, `restore` and
`topics`; no kafka, which comes through ports."""

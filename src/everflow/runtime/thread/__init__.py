"""The driver's side of a stream thread.

`stream_thread`: its loop, over `thread_ports`; `batching` chooses what a batch reads. `thread_job`
runs batches in a long-running Spark job, which `resident_job` talks to; `columns` prepares Columns,
`packing` makes the parcel for the workers. After a failure `retry_policy` decides what is done,
`failure_text` has the words, `worker_processes` ends workers, `uncaught` asks the user's handler.
May import every room below but `restore` and `copies`; the only room that imports spark, and it
names the files of `worker` for Spark to run.
"""

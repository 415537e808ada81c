"""The driver's side of a stream thread.

`stream_thread`: its loop. `batching`: which offsets a batch reads. `thread_job`: runs batches in a
long-running Spark task; `columns` prepares Columns and packs what the workers run. After a failure
`retry_policy` decides what happens, `failure_text` words it, `worker_processes` ends workers.
`batch_counts`: metrics and log lines of committed batches, and the rows of ``print_table``.
May import every room below but `restore` and `copies`; the only room that imports spark, and it
names the files of `worker` for Spark to run.
"""

"""The driver's side of a stream thread: `stream_thread` is its loop, `batching` says which offsets
a batch reads, `thread_job` runs it in a long-running Spark task. After a failure `retry_policy`
decides. May import every package below but `restore` and `copies`; the only one that imports spark,
and it names the files of `worker` for Spark to run."""

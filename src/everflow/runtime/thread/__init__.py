"""The driver's side of a stream thread.

`stream_thread`: its loop, over `thread_ports`; `batching` chooses what a batch reads. `thread_job`
implements a batch as a Spark job, and `resident_job` as one that stays; `packing` makes the parcel
for the workers. What fails: `repeated_failures` decides, `failure_text` tells;
`worker_processes` and `batch_watchdog` end workers. May import every room
below but `restore` and `copies`; the only room that imports spark, and it names the files of
`worker` for Spark to run.
"""

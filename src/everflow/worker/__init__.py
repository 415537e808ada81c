"""The worker's wing: everything that runs in Spark's Python workers.

`serve` reads and runs micro-batches: `decode`, then `task_step` in the order of the plan, then
`sink`, over ports of `serve`. `isolation` runs a batch without its bad records. Tests kill the
process at `crash_points`.
Never imports `everflow.instance` or Spark's side of the driver. Modules are pickled by name: a
worker imports them at its start.
"""

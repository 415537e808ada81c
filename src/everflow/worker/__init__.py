"""The worker's wing: everything that runs in Spark's Python workers.

`serve` reads and runs micro-batches. `decode` decodes them, and asks the exception handlers of bad
records; `task_step` runs the operators in the order of the plan, with `times`, `order`,
`columns`, `stateful`, `stores` and `failures`; `sink` commits over ports of `serve`: Kafka, the
driver's commit gate, LMDB. `isolation` runs a batch without its bad records, `letters` writes
dead-letter records. Tests kill the process at `crash_points`.
Never imports `everflow.instance` or Spark's side of the driver. Modules are pickled by name: a
worker imports them at its start.
"""

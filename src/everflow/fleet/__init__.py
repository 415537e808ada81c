"""Instances in the places of a Spark cluster (note 053): what `everflow fleet` does.

Read `decision` first (pure: Spark's settings, what a keeper does next, what is told), then what
runs where: `command` on the driver, `slot_job` and `places` for each slot there, `control` the
door; `host_task` in a Spark task, `keeper` beside it. `messages` is what goes between them.

The loop is `everflow.autoscale.loop`. May import layer 0, the loop, the start of Spark's JVM, and
the HTTP server.
"""

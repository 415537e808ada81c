"""Instances in the places of a Spark cluster (note 053): what `everflow fleet` does.

Read `decision` first (pure: the messages, Spark's settings, what a keeper does next), then what
runs where: on the driver `command`, with a `SlotJob` for each slot, and `control`, its HTTP
endpoint; on the hosts `command.host_instance` in a Spark task, and `keeper` beside it.

The loop is `everflow.autoscale`. May import layer 0, the loop, the start of Spark's JVM, and
the HTTP server.
"""

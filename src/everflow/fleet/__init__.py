"""Instances in the places of a Spark cluster (note 053): what `everflow fleet` does.

Read `decision` first (pure), then what runs where: on the driver `command`, and `control`, its HTTP
endpoint; on the hosts `command.host_instance` in a Spark task, and `supervisor` beside it.

The loop is `everflow.autoscale`. May import it, layer 0, `everflow.client.direct`,
Spark's start and the HTTP server.
"""

"""Runs as many instances on this machine as they say that there should be (note 049).

It is what `everflow autoscale` does.

`decision`: pure. `processes`: one instance in a process of its own. `loop`: looks, decides, acts;
`everflow.fleet` is the same loop over places in a cluster.
May import layer 0 and `everflow.client.direct`; it runs beside the instances and knows none from
inside.
"""

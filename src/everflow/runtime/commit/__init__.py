"""A micro-batch's commit, seen from the driver, and the messages of both sides.

`batch`: what driver and workers tell each other, with the ids of batches. `commit_gate`: the
driver's answer to "may this batch commit?"; a worker asks through `worker.ports`.
May import layer 0 only: no engine, no other room. The driver runs `commit_gate`, both
sides `batch`.
"""

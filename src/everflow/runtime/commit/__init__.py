"""Both sides of a micro-batch's commit, in driver and worker.

`batch`: what they tell each other, with the ids of batches. `commit_gate`: the driver's answer to
"may this batch commit?".
`gate_client`: the worker's question. `deferred_offsets`: offsets of at-least-once that a
rebalancing group would not take.
May import layer 0 only: no engine, no other room. The driver runs `commit_gate` and
`deferred_offsets`, a Python worker `gate_client`, both of them `batch`.
"""

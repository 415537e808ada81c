"""`./run chaos`: rounds of drawn faults against three instances under load, and a checker that
knows the right answer from the input alone (note 048).

Pure: `schedule` (the faults, from the seed), `orders` (the input and what must come of it),
`analyses` (the seven of Jepsen's Redpanda workload), `books` (everything together). At the edges:
`program` and `instance` (what is tested), `load`, `follower` (reads outputs while they appear),
`fleet` (three instances, each behind a network and a disk of its own), `strikes` (does a fault, and
shows that it happened), `command`. `mutations`: the product without one of its guards.
"""

"""The life of a task on an instance.

`task`: its states, and how tasks are dealt to stream threads. `blueprint`: what the tasks of this
program are. `task_manager`:
what a rebalance gives and takes. `recovery`: the order in which a task becomes able to run, over
ports, which `task_recovery` implements on the cluster. `lost_writers`: transactional ids that
nobody will fence any more. May import layers 0 and 1, `commit`, `restore` and `topics`; only
`task_recovery` touches kafka and state. It runs in the driver.
"""

"""The life of a task on an instance.

`task`: its states, its time-out, and how tasks are dealt to stream threads. `blueprint`: the tasks
of this program. `task_manager`: applies the assignments and revocations of a rebalance. `recovery`:
the order in which a task becomes able to run, over ports that `task_recovery` implements on the
cluster; and the fencing of instances that vanished. May import layers 0 and 1, `commit`, `restore`
and `topics`; only `task_recovery` touches kafka and state. It runs in the driver.
"""

"""The dashboard of an instance, in the order of an operator's questions (note 054).

`history`: the last log lines and snapshots of the last minutes, and rates between two of them.
`view`: the dashboard's content as plain values, its verdict first; pure. `peers`: the other
instances. `routes`: its paths, and its dead letters.
The dashboard's own files lie beside them: no build step, nothing from elsewhere. May import layer
0, starlette and `everflow.observe`. It runs in the driver.
"""

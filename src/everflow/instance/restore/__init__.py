"""Replays changelogs into stores.

`restore_plan`: decides what has to be read, and whether the store may be trusted (pure).
`changelogs`: asks the cluster for that decision. `restoration`: loads the store. `listeners`:
reports progress to the user's listeners and to the metrics.
May import layers 0 and 1, state and the admin of kafka; no other room. It runs in the driver.
"""

"""Replays changelogs into stores.

`restoration`: decides what has to be read and whether the store may be trusted (pure), and loads
it. `changelogs`: asks the cluster for that decision. `listeners`: reports progress to the user's
listeners and to the metrics.
May import layers 0 and 1, state and the admin of kafka; no other room. It runs in the driver.
"""

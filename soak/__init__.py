"""`./run soak`: an hour at one pace, with a rebalance each minute, and nothing may grow.

`run` is the command, `program` what runs, `load` sends, `instance` is one of the two instances,
`samples` looks at their processes, `flatness` says whether a figure grew, `plot` draws all of them.
May import bench, chaos and everything of everflow.
"""

"""The demos: real data through a real broker, exactly once, compared with a plain batch.

`run` is the whole of the flights demo: `data` and `feed` send the flights, `topology` counts them,
`batch` does so with pandas and compares, `report` shows; `stage` is what a demo runs on, and
`enrichment` is the second one. With two instances `elastic` directs and watches them:
`instance_process` starts `instance`.
A package of its own, which everflow's wheel carries; of everflow only `everflow demo` imports it.
It may import all of everflow but `everflow.cli`. `docs/guide/first-hour.md` shows its output.
"""

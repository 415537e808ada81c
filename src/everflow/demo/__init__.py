"""The demos: real data through a real broker, exactly once, compared with a plain batch.

`run` is the whole of the flights demo: `data` and `feed` send the flights, `topology` counts them,
`batch` does so with pandas, `results` compares and `report` shows; `stage` is what a demo runs on,
and `enrichment` is the second one. With two instances `elastic` directs:
`instance_process` starts `instance`, `view`, `moves` and `pauses` watch.
May import everything; nothing below imports it. `docs/guide/first-hour.md` shows its output.
"""

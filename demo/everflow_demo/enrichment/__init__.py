"""The enrichment demo: the flights joined with three tables of the same package.

`run` is the whole of it: `data` reads airlines, planes and weather, `topology` joins, `batch` does
so with pandas and compares, `report` shows.
May import what the flights demo may, and of that what is not about its own results.
"""

"""What travels from the driver to Spark's Python workers, and how.

The rule: **what belongs to the user's program travels by value, as it is when the instance starts;
everything installed is imported where it is needed.** `own_code` says what belongs to the program,
`by_value` pickles it, `classes` its classes, `parcel` opens it once per worker process, `refusals`
says in words what cannot travel, `inert` makes it harmless that a worker imports a program all the
same.

In a worker, the program's modules hold what its functions use: functions, classes and variables,
one copy for all functions of a worker. Whatever else is asked of such a module is imported from its
file then. Nothing travels back: a variable that a function changes is changed in its worker only.
May import layer 0 and pyspark (its cloudpickle). The driver packs, a Python worker opens.
"""

"""The user's program on its way from the driver to Spark's Python workers.

The rule: **what belongs to the user's program is pickled by value, as it is when the instance
starts; everything installed is imported where it is needed.**

In a worker, the program's modules hold what its functions use: functions, classes and variables,
one copy for all functions of a worker. Whatever else is asked of such a module is imported from its
file then. Nothing comes back: a variable that a function changes is changed in its worker only.
May import layer 0 and pyspark (its cloudpickle). The driver packs, a Python worker opens.
"""

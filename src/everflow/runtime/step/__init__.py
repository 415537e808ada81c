"""What a micro-batch's records become. Pure.

`task_step` runs the operators of a plan. `times` gives records their times, `order` puts them in
order, `functions` calls the user's functions, `stateful` runs operators on the `stores` of their
tasks. `failures` says why a step failed, and where in the program.
May import layers 0 and 1, the messages of `commit`, and the list of the user's folders in travel:
no Kafka, Spark, LMDB, threads or sockets; what it needs of them is passed in. A Python worker runs
it; so do the test driver and the simulation.
"""

"""What a micro-batch's records become. Pure.

`task_step` runs the operators of a plan; `merge_order` puts its inputs in order, `step_functions`
decodes and calls the user's functions, `step_stores` shows operators their stores. `step_failure`
says why a step failed (`spark_failure` reads Spark's text), `user_line` where in the program.
May import layers 0 and 1, the messages of
`commit` and the list of the user's folders in travel: no Kafka, Spark, LMDB, threads or sockets;
what it needs of them is passed in. A Python worker runs it; so do the test driver and the
simulation.
"""

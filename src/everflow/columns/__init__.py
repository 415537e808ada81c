"""Arrow twins of Spark's expressions (note 016): Columns computed in a worker, without the JVM.

`kernels` are the functions there are, each exactly what Spark's expression is; `computation` runs
some of them over the columns of a batch; `builder` puts a computation together. May import layer 0
and Arrow: who translates Spark's expressions is `everflow.spark.arrow_twins`. The Python workers
run them, and the test driver.
"""

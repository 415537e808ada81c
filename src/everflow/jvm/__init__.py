"""The JVMs that everflow starts (Spark, the embedded broker): what they need before they run.

`java` finds Java, `jars` resolves class paths, `class_archive` makes and names the archives that
JVMs start quicker from.
May import the errors alone: a command asks before anything else of everflow is there.
"""

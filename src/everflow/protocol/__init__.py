"""What crosses between driver and workers: the messages of a micro-batch and of its commit.

Imports values only: no engine, no module of either wing.
"""

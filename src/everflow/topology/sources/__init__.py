"""How the inputs of a topology are read. Pure.

`patterns`: the topics that a pattern names; `idle_sources`: which sources move time while they are
silent (note 025). They import the graph, and what that does.
"""

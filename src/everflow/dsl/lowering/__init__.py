"""From calls of the DSL to nodes: one-way functions that know no class of `everflow.dsl.streams`.

Each takes a `graph_builder.Stream` (graph, node, edge) and what the user gave, checks it, appends
nodes to the graph and returns the `Stream` behind them. TopologyError, with the user's line and
the cure, for what cannot work. All calls belong to the thread that builds the topology.

Lowest first: `stateless`, `processors`, `tables`, `joins`, `aggregation`. They import
what `everflow.dsl` may, and of that nothing above themselves.
"""

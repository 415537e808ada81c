"""From calls of the DSL to nodes: one-way functions that know no class of `everflow.dsl.streams`.

Each checks what the user gave (TopologyError), appends nodes behind a `graph_builder.Stream`, and
returns the one behind them. All calls belong to the thread that builds the topology.

Lowest first: `stateless`, `processors`, `tables`, `joins`, `aggregation`; none imports those above.
"""

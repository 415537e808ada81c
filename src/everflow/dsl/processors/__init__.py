"""Calls of the processor API, while they are lowered.

`processor_call` makes the node, `connected_stores` finds what ``stores=`` names, `suppliers` says
what makes processors. May import what `everflow.dsl` may.
"""

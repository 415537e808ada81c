"""Reads of an instance's stores by the user's program (docs/QUERIES.md).

`queries`: which copies may be read now, and the user's side. `store_query`: the reading of each
kind of store, in short transactions. `key_metadata`: who has the other keys. `query_errors`: why
there is no answer. May import layers 0 and 1, `tasks`, the instance's `client_state`, state, and of
kafka the description of the group. It runs in the driver, on the
callers' threads.
"""

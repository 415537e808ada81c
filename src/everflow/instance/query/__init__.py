"""Queries of an instance's stores by the user's program (docs/QUERIES.md).

`queries`: which replicas may be read now, and the user's methods. `store_query`: reads each kind of
store in short transactions. `key_metadata`: which instance has a key. May import layers 0 and 1,
`tasks`, the instance's `client_state`, state, and of kafka the description of the group. It runs in
the driver, on the callers' threads.
"""

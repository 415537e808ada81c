"""Queries of an instance's stores by the user's program (docs/QUERIES.md), on the callers' threads.
May import layers 0 and 1, `tasks`, `client_state`, state, and of kafka the group's description."""

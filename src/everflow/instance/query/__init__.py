"""Queries of an instance's stores by the user's program (docs/QUERIES.md), on the callers' threads.
May import layer 0, topology, snapshots, `tasks`, `client_state`, state, the members' messages
(`assignment.user_data`), and of kafka the group's description."""

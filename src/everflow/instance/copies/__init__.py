"""Copies of stores that no active task writes: standbys, warm-ups, and what is left in the folder.
May import layer 0, operators, topology, `restore`, `tasks` and state; kafka through ports."""

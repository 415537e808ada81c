"""Copies of stores that no active task writes: standbys, warm-ups, and what is left in the folder.
May import layers 0 and 1, `restore`, `tasks` and state; kafka comes through ports."""

"""Copies of stores that no active task writes: standbys, warm-ups, and what is left in the folder.

`state_updater`: the thread on which they follow their changelogs, and which of them make no
progress. `known_copies`: the lag of each, for the group; how fresh each is; and the removal of
state that no task uses. `global_tables`: tables of which every instance has all rows.
May import layers 0 and 1, `restore`, `tasks` and state; no kafka (it comes through ports).
It runs in the driver.
"""

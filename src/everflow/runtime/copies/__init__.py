"""Copies that no active task writes: standbys, warm-ups, and what lies at rest in the state folder.

`state_updater`: the thread that lets them follow their changelogs; `stalled_copies`: which of them
make no progress. `known_copies`: how far each is, as the group is told, and until when one is known
to have missed nothing. `state_keeper`: touches what is quiet and removes what nobody needs.
`global_tables`: tables that every instance has whole.
May import layers 0 and 1, `restore`, `tasks` and state; no kafka (it comes through ports).
It runs in the driver.
"""

"""Replays changelogs into stores. May import layers 0 and 1, state and the admin of kafka."""

"""Replays changelogs into stores. May import layer 0, state and the admin of kafka."""

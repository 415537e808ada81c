"""Stores on disk, and what they have in common with their changelogs.

Pure: `store` (specifications, versions, the view that operators read), `changelog` (bytes of its
records) and `key_ranges` (the ranges of keys that a query reads).
On disk: `lmdb_store` over `lmdb_env`, with `store_snapshot`, `stored_keys`, `store_meta` and
`disk`; `task_directory` is the state folder: who owns it, which task has which files.
May import layer 0, and lmdb, which nobody else does. Driver and Python workers open the same
stores.
"""

"""From a changelog into a store.

`restore_plan`: what is still to be read, and whether the store may be trusted (pure). `changelogs`:
what the cluster says, for that decision. `restoration`: the loading. `restore_listener`,
`standby_listener`: what a user is told; `restore_progress` adds it up and passes it on.
May import layers 0 and 1, state and the admin of kafka; no other room. All of it runs in the
driver.
"""

"""From a changelog into a store.

`restore_plan`: what is still to be read, and whether the store may be trusted (pure). `changelogs`:
what the cluster says, for that decision. `restoration`: the loading. `listeners`: what the
user's listeners and the metrics are told of it.
May import layers 0 and 1, state and the admin of kafka; no other room. All of it runs in the
driver.
"""

"""Commands of those who watch and scale instances (docs/guide/metrics.md, kubernetes.md).

`watch_commands`: their options. `group_lag`: how far a group is behind. `drain`: an instance of
this host leaves; `kubernetes`: what a pod asks the API server. `instance_checks`: what is checked
before instances are started. May import what the commands may.
"""

"""``everflow reset``: `plan` decides, `cluster_reset` does it, `command` asks and shows (note 057).

May import what `everflow.cli` may; `plan` imports no client. Only `everflow.cli.app` imports it.
"""

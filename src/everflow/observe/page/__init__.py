"""The dashboard of an instance, in the order of an operator's questions (note 054).

`history`: what was; `view`: the content, pure; `other_instances`: their state; `routes`: its paths.
The dashboard's own files lie beside them, and Mermaid, which draws the topology (`mermaid.NOTICE`):
no build step, nothing from elsewhere. May import layer 0, starlette and `everflow.observe`. It runs
in the driver.
"""

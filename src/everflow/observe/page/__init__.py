"""The dashboard of an instance, in the order of an operator's questions (note 054).

`events`: the last log lines for people. `history`: snapshots of the last minutes, and rates between
two of them. `verdict`: one line of status, and the time to catch up. `view`: the dashboard's
content as plain values; pure. `readers`: sends them to open dashboards. `routes`: its paths. The
dashboard's own files lie beside them: no build step, nothing from elsewhere. May import layer 0,
starlette and `everflow.observe`. It runs in the driver.
"""

"""The HTTP endpoints of an instance: `/metrics`, `/live`, `/ready`, `/status` (note 049).

`observation`: one look at an instance, in plain values, made by who knows it. `figures`: the table
of all figures; `exposition`: as Prometheus reads them. `health`, `desired_instances`: decisions,
pure. `http_server`: the routes. May import layer 0, prometheus_client, starlette and uvicorn, and
knows no runtime. It runs in the driver.
"""

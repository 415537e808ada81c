"""The HTTP endpoints of an instance: `/metrics`, `/live`, `/ready`, `/status` (note 049).

`observation`: one look at an instance, in plain values, made by who knows it, and what `/status`
says of it. `figures`: the table of all figures. `desired_instances`: a decision, pure.
`http_server`: the routes, and `/metrics` as Prometheus reads it; `page`: the dashboard. May import
layer 0, `everflow.client`, prometheus_client, starlette and uvicorn, and knows no runtime. It runs
in the driver.
"""

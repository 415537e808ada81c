"""The HTTP endpoints of an instance: `/metrics`, `/live`, `/ready`, `/status`, `/rebalances`.

`observation`: a snapshot of an instance; `http_server`: the routes; `page`: the dashboard. May
import layer 0, `everflow.client`, prometheus_client, starlette and uvicorn; knows no runtime.
"""

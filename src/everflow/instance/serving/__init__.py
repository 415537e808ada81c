"""The query service: stores over HTTP (``query.listen``, design note 052).

`answers` reads requests and asks the stores; `routes` has the paths and opens the port. May import
`everflow.instance.query`, `everflow.client.key_forms` and `everflow.observe.http_server`; it knows
nothing of the instance.
"""

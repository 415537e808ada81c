"""The query service: stores over HTTP (``query.listen``, design note 052).

`parameters` reads requests, `answers` asks the stores, `routes` are the paths and their
description, `served` opens the port. May import `everflow.runtime.query`,
`everflow.client.key_forms` and `everflow.observe.http_server`; it knows nothing of the instance.
"""

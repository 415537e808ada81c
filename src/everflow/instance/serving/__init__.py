"""The query service: stores over HTTP (``query.listen``, design note 052). May import `query`,
`everflow.client.key_forms` and `everflow.observe`; it knows nothing of the instance."""

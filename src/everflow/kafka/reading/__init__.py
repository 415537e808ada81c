"""Reading logs (note 012): `log_reader` reads a changelog's range, `range_reader` a micro-batch's,
`copy_follower` follows changelogs, all by the one `log_fetcher`. May import layer 0 and the
rest of kafka, which knows nothing of it. Driver and Python workers run it.
"""

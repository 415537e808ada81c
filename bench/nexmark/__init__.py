"""NEXMark: its events, what the queries' results are to be, and its programs (`./run bench nexmark`)."""

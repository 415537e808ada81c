"""NEXMark (`./run bench nexmark`): its events, its programs, and what their results are to be."""

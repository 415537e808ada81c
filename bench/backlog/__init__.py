"""A backlog against the memory that an instance may take (note 045)."""

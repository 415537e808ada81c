"""A new version takes over under load: `everflow migrate` and growth beside stop-and-reset."""

"""See docs/ARCHITECTURE.md for what lives here."""

"""The chip TU102."""

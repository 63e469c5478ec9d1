"""The chip GB100."""

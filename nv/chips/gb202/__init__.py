"""The chip GB202."""

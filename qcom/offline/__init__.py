"""A chip without a phone."""

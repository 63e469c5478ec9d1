"""Read PTX text into a typed module."""

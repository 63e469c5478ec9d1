"""The chip GA102."""

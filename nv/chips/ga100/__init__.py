"""The chip GA100."""

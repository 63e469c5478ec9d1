"""The chip GH100."""

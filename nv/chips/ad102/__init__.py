"""The chip AD102."""

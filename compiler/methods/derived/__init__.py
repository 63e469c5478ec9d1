"""Methods composed of those of several groups."""

"""Facts per chip: one folder a chip."""

"""The driver's half of each block of a chip."""

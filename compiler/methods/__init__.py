"""Tensor methods by subject; compiler.tensor combines the groups."""

"""Tensor methods along an axis: running totals, sorts, scattered elements."""

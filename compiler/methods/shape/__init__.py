"""Tensor methods that change shape and order, and resample."""

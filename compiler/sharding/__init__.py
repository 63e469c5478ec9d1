"""Tensors on several devices: split along an axis or replicated, and the collectives between."""

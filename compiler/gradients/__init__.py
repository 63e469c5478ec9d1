"""Reverse-mode gradients over the tensor graph: one rule for each kind of node."""

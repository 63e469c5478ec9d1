"""Tensors to machine code."""

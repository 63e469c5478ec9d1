"""Kernels, lifetimes and memory of a run on a target."""

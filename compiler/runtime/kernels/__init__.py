"""Kernels of a program: prepared, stored on disk, tuned, compiled ahead."""

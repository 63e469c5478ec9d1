"""Fourier transforms on the host."""

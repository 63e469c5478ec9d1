"""Attention, on processors and GPUs."""

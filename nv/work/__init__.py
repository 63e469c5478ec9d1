"""Queues of an NVIDIA GPU, and the programs that they run."""

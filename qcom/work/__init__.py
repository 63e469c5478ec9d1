"""Queues of an Adreno GPU, and the programs that they run."""

"""Queues of an AMD card, and the programs, images and memory that they use."""

"""Scheduling: which values are stored, in which order, in which memory."""

"""Caches, loading, launching, recording."""

"""Recordings of accesses to a device: written, read, replayed."""

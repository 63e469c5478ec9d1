"""Synchronous copies between host memory and device buffers."""

"""Engines behind channels: compute and copy."""

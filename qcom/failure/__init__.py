"""Failures of an Adreno GPU."""

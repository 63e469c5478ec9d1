"""Adreno X1-85."""

"""Sorts on the host: of values, of values and places, and what they are made of."""

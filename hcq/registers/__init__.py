"""Registers, constants and structures by name, read from generated tables."""

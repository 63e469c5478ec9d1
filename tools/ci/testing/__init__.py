"""Runs of a test on lent devices, for the pytest plugin, and what each proves."""

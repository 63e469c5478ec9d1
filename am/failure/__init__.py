"""Failures of an AMD card: reports, evidence, diagnosis, recovery."""

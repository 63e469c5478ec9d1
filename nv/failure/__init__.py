"""Failures of an NVIDIA GPU: error reports, evidence, recovery."""

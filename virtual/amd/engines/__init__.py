"""Command execution on the virtual card: the compute micro-engine and SDMA."""

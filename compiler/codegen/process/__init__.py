"""Compilation in child processes."""

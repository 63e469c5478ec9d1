"""Nested functions: parts of a program that are planned once and called many times."""

"""The slow second opinion of the tests: every instruction in NumPy."""

"""The tensor graph: nodes, their operations, and where they were built."""

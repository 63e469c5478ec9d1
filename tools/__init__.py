"""Programs: generator, command line, checks. The only place that wires the parts together."""

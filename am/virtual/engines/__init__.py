"""What executes commands on the virtual card: the compute micro-engine and SDMA."""

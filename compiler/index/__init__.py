"""Index arithmetic: every tensor is a function of its ranges."""

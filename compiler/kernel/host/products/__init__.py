"""Matrix products on the host."""

"""Ways to reach a chip; the protocol is in hcq.transport.base."""

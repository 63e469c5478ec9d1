"""Transports to a chip; the protocol is in hcq.transport.base."""

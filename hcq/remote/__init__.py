"""Devices of a ugpud: leases, and queues over the wire (docs/daemon.md, ADR 0005)."""

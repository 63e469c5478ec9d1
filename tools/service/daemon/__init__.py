"""ugpud: owns the devices of a machine, keeps them booted and leases them (docs/daemon.md)."""

"""The daemon's clients: tokens, leases, their resources and their work."""

"""The kit of device files: what models of kernel drivers share; see `hcq.transport.node`."""

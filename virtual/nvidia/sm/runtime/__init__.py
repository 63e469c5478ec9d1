"""Runtime of translated kernels: memory, launcher, worker threads."""

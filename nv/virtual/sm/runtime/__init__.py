"""What translated kernels need while they run: memory, launcher, worker threads."""

"""Search: measure kernels with other choices than the defaults, and keep the best on disk."""

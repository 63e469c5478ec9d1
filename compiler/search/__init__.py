"""Search: kernels measured with other choices than the default ones, the best kept on disk."""

"""Parts of kernels for both processors and GPUs."""

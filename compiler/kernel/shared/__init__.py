"""Parts of kernels for processors and GPUs alike."""

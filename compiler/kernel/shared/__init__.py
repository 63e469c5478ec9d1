"""What kernels for processors and GPUs share."""

"""Products by what NVIDIA's units do beside the threads."""

"""Code for NVIDIA GPUs: PTX, cubins, and the routines that CUDA's driver would add."""

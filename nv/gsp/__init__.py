"""NVIDIA GPUs without a kernel driver: boot the GPU's system processor (GSP) and use its manager."""

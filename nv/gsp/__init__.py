"""NVIDIA GPUs without a kernel driver: boot the GPU's system processor (GSP), use its manager."""

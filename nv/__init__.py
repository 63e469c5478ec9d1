"""NVIDIA GPUs: through the stock kernel driver (nv.device.device), and models of it
(virtual.nvidia)."""

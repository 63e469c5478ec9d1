"""NVIDIA GPUs: through the stock kernel driver (nv.device), and models of it (nv.virtual)."""

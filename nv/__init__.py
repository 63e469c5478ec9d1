"""NVIDIA drivers; not built yet."""

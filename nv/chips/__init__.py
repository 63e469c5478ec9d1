"""Facts per NVIDIA chip."""

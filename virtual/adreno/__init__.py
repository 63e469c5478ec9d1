"""Models of Adreno GPUs."""

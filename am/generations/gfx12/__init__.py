"""GFX 12.0: RDNA 4 boards (GC 12.0.0, 12.0.1)."""

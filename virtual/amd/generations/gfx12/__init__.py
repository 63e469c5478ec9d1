"""The model of GFX 12.0 cards."""

"""The model of GFX 11.0 cards."""

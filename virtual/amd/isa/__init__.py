"""The virtual shader core: decoder and translator of gfx1100 machine code, and its runtime."""

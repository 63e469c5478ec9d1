"""The virtual shader core: decoder, oracle and translator of gfx1100 machine code."""

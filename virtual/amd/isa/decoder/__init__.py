"""gfx1100 machine code to instructions, and back to text."""

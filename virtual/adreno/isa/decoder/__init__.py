"""Decoder of ir3 instructions, driven by the generated table."""

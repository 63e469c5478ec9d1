"""The virtual shader processors: ir3 machine code translated to native code."""

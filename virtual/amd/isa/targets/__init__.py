"""Instruction sets, one text table each; `target` has the class that the decoder reads."""

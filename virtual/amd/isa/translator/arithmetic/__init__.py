"""Arithmetic instructions, translated to LLVM IR."""

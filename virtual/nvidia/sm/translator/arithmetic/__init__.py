"""Arithmetic and conversions of PTX, translated to LLVM IR."""

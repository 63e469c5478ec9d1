"""Translate decoded ir3 to LLVM IR: one function per kernel, which runs one wave."""

"""LLVM IR text, read into instructions with structured control flow."""

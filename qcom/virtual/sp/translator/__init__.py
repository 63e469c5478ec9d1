"""From decoded ir3 to LLVM IR: one function for a kernel, which runs one wave."""

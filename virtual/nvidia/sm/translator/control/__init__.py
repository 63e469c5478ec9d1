"""Control flow, calls and frames of PTX kernels, translated to LLVM IR."""

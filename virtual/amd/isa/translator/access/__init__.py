"""Memory instructions and exchange between lanes, translated to LLVM IR."""

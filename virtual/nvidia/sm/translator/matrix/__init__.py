"""Matrix instructions of PTX, translated to LLVM IR."""

"""Translation of a parsed PTX kernel to LLVM IR, a warp of 32 lanes as vectors."""

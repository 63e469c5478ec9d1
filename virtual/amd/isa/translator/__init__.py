"""Instructions to LLVM IR, lanes as vectors."""

"""From the kernel IR to object files, by LLVM."""

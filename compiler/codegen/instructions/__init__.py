"""Special instructions as LLVM intrinsics."""

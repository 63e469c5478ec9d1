"""Machine code for Adreno GPUs: LLVM IR to NIR to ir3, through the library of tinymesa."""

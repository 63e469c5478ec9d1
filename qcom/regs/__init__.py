"""Generated tables of Adreno GPUs; tools.isaspec and tools.clang2py make them."""

"""Tables of Adreno GPUs, generated from Mesa's register database and the header of KGSL."""

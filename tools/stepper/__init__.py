"""`ugpu debug`: kernels on models, instruction by instruction."""

"""`ugpu debug`: step through kernels on models, instruction by instruction."""

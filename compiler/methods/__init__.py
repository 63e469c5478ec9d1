"""What a Tensor can do, by subject; compiler.tensor puts the parts together."""

"""What users call beside Tensor: jit, function, explain."""

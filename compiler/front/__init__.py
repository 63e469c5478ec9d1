"""Public functions beside Tensor: jit, function, explain, compile."""

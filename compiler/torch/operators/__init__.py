"""PyTorch's operators as tensor operations, one file per family."""

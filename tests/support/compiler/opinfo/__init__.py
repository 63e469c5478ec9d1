"""PyTorch's own samples of its operations (OpInfo): results and gradients, PyTorch's and ours."""

"""Files of tensors: safetensors, GGUF, NumPy, PyTorch checkpoints and tar.

A file is read by position: first its header, in which every count and size is checked, then the
bytes of the requested tensors, in few large reads into device memory. Nothing in a file is
executed.
"""

"""The host as a device: threads as queues, kernels as native code, the same interface as a GPU."""

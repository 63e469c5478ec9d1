"""What NVIDIA's queues read: methods, launch descriptors, constant banks."""

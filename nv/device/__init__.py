"""An NVIDIA GPU as a device, and its sensors."""

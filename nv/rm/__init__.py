"""The resource manager of NVIDIA's stock kernel driver: its objects, memory, channels, by ioctl."""

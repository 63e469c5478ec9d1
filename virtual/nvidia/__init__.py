"""Models: the resource manager's ioctl interface, and the streaming multiprocessors behind it."""

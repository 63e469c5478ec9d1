"""Virtual devices: models at register level or at the kernel driver's interface."""

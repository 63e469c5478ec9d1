"""An open device: the user's object, what all devices share, the driver interface, recovery."""

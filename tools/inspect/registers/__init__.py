"""`ugpu reg`: registers by name, of a device, a recording or a file of values."""

"""From vendor headers to register tables and struct layouts."""

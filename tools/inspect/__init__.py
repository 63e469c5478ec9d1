"""Programs that show devices, and what keeps a machine from using them."""

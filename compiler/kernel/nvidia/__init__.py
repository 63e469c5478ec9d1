"""Matrix products on NVIDIA's asynchronous units."""

"""A virtual card behind a vfio-user socket."""

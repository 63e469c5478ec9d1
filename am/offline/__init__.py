"""A chip inspected without a boot, or from a recording."""

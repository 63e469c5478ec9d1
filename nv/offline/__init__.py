"""A card inspected without a boot, or from a recording."""

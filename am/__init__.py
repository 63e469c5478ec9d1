"""AMD bare metal: driver, chip facts, generated register tables, and the virtual chips."""

"""Set-up, and checks of layers, sizes, promises and texts."""

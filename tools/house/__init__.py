"""What keeps the house in order: set-up, layer and size checks."""

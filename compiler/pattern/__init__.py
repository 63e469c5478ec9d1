"""What a computation is, whatever the target: products, rows, attention, and its cost."""

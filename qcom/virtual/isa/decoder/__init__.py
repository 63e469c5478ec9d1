"""Instructions of ir3 taken apart, by the generated table."""

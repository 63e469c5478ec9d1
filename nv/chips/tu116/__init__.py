"""The chip TU116."""

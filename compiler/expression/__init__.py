"""Values as functions of ranges: indices, operations, elementary functions."""

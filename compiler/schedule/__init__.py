"""What is stored, in which order, in which memory."""

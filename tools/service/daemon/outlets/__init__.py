"""What the daemon tells: journal, history, feed."""

"""What queues of submissions in a ring share, and the driver's own work on them."""

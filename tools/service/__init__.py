"""Services: the daemon, its page, metrics."""

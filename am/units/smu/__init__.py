"""The power management processor: mailbox, metrics, notifications, temperature limits."""

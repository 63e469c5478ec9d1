"""Messages between driver and GSP: queues, records, events."""

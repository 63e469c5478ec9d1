"""PM4 packets: formats, and execution for each kind of queue."""

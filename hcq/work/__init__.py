"""Work for a device: buffers, commands, programs, queues, graphs, timelines."""

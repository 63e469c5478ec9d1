"""The GSP after its boot: message queues, and the resource manager as an RPC server."""

"""The command processor: micro-engines, queue slots and queues; what runs packets is in pm4."""

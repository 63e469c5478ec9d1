"""The command processor: micro-engines, queue slots and queues; package pm4 runs packets."""

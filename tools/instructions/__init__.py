"""Generate the tables of instructions of the virtual AMD cards."""

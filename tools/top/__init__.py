"""`ugpu top`: all devices of this machine that a process of this user has open."""

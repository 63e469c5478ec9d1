"""`ugpu top`: all devices of this machine that are open in a process of this user."""

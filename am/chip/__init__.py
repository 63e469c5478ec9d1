"""One chip behind one transport: its registers, its discovery table, its link."""

"""`null:<chip>`: a device without hardware, which compiles, plans and counts, and runs nothing."""

"""Work on several devices: recorded graphs, and copies between them."""

"""The falcons, and the programs of the model that run on them."""

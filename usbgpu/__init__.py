"""Ways to a card outside the box (USB3 bridge, Thunderbolt); not built yet."""

"""Models of generations: a folder each, with a record; found by the name in the chip's facts."""

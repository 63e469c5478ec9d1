"""Lane memory: what PASS lanes load, store and change at once, by native functions."""

"""Lane memory: native functions by which PASS lanes load, store and change memory at once."""

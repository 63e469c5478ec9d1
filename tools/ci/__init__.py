"""Hardware CI: a pytest plugin and a runner that distinguish a failing test from a failing
device."""

"""Hardware CI: a pytest plugin and a runner that tell a failing test from a failing device."""

"""Memory of the virtual GPU: objects, address spaces, translation, CPU caches."""

"""Code objects: ELF, AMD, Adreno and shared objects, DWARF, native code in this process."""

"""The model of the UVM driver: registrations, ranges, mappings."""

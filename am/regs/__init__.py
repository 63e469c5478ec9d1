"""Generated register tables, structs and constants of AMD chips; never edited by hand."""

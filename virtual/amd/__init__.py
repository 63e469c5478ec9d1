"""Register-level models of AMD chips; they share only generated tables with the driver."""

"""Register-level models of AMD chips; they share the generated tables with the driver, nothing else."""

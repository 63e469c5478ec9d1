"""Register-level models of AMD chips; they share generated tables with the driver, nothing else."""

"""Random programs of tensors, compared with a judge; see __main__."""

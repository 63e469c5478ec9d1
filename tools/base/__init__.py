"""What programs share: output, progress, files, names of bundles and recordings, events."""

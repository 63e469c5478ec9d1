"""Programs that find out why something failed: recordings, traces, crashes, single steps."""

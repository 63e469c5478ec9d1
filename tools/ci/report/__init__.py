"""Reports of a run: JUnit, a page, the history."""

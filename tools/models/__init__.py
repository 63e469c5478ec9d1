"""Models from files, as commands: `ugpu run`, `ugpu chat`, `ugpu serve-llm`."""

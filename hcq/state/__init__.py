"""Ground floor of the runtime: settings, time, errors' facts, checks of arguments, the recovery
ladder."""

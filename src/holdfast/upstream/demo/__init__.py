"""The built-in model: works offline, without a key, and says so."""

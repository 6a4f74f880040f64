"""Serves the built page (T3-T5); its source is ui/ at the root."""

"""The sessions API (J2)."""

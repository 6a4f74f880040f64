"""Connections to providers: the only code that opens any (U14, U17)."""

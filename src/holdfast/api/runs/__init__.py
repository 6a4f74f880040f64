"""The runs API (J1, J3)."""

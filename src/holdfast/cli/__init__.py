"""The `holdfast` command (T1, T2)."""

"""Answers that follow a run: one driver for all streams, and the connections that it writes to (R3, C2, C7)."""

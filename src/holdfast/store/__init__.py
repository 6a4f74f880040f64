"""The durable log, sessions and messages (R1, R6-R8, R14, P4, P11, C15, S9)."""

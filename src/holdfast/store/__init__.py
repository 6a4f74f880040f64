"""The durable store: its port and records, kept in memory, SQLite or PostgreSQL (R1, R6-R8, R14, P4, P11, C13-C15)."""

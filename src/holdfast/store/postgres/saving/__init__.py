"""How what live runs say and do gets into PostgreSQL: in order, in groups, and once (R1, R6, R8)."""

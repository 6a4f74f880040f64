"""How what live runs say and do gets into the file: in order, in groups, and once (R1, R8)."""

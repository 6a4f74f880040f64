"""What servers on one PostgreSQL agree on: leases, commands, notices (R17)."""

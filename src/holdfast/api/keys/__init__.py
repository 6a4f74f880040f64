"""/v1/keys, /v1/usage and /v1/audit: keys for a team, what they use, and who did what (S12-S14)."""

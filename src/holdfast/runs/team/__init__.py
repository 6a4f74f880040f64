"""Keys for a team (S12): whose they are, what they may do, and runs as the owner of one sees them."""

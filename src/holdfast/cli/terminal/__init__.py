"""What the commands show and ask in a terminal."""

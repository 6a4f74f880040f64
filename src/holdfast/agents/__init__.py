"""What a run executes: the built-in agent's loop, and what it is asked, shown and allowed."""

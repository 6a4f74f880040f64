"""Code that is not ours, agents and tools of the user's own: loaded and run so that it harms nobody else (A8)."""

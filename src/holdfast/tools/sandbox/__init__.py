"""Where commands run: what they may see, write, use and reach, and how everything they started ends (S15)."""

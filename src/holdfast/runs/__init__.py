"""The agent: runs, their turns and tools, their log and their end (R)."""

"""What a server consists of, put together from its settings: agents, and the tools that each of them has."""

"""What the agent can do: the port, a folder or a module for each set of tools, and the toolbox that bounds them."""

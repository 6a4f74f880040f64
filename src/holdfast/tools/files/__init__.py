"""The file tools and the workspace that they are confined to."""

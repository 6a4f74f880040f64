"""POST /v1/messages, the Anthropic Messages API (M)."""

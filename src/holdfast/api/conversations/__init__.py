"""/v1/conversations: conversations that live until they are deleted (P6)."""

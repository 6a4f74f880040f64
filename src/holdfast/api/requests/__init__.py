"""Reading a request: its body, headers, session, model, page and key, up to the run that it starts."""

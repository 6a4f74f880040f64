"""POST /v1/responses and what belongs to it (P): a response is a run, seen through its encoder."""

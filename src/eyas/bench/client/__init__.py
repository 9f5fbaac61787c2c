"""Any OpenAI-compatible server, measured from outside."""

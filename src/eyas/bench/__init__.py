"""The bench: measurements of a server or of eyas itself, and the report that shows them."""

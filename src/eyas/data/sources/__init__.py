"""Reads prompt records from files, URLs, hub datasets and request logs."""

"""Schedules requests and runs prefill, draft, verify and extend on the device."""

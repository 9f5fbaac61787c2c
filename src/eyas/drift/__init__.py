"""Whether a head still fits what is asked of it: live acceptance kept beside prompts that went badly, and compared."""

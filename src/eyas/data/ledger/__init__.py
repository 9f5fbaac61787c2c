"""Records what happened to each prompt, and describes the result for people and machines."""

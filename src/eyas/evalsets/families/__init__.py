"""The seven families of prompts: functions that write a conversation from random numbers."""

"""Configuration and arithmetic of costs: rates, prices, hours, money, and the expected acceptance length."""

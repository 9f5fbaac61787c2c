"""What a run costs: rates and prices of hardware that is not here, sums, and what others got out of how much data."""

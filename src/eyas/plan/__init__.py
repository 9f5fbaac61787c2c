"""`eyas plan`: what of a run is finished, what would run, and what that takes. Nothing is written."""

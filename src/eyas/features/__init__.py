"""What a stored training example is: its layout, its capture from the target, its files, its order of reading."""

"""A head directory on disk: written, read strictly, checked against a target."""

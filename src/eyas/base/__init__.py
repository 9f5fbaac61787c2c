"""The lowest package: errors, configuration, storage, provenance and progress. It imports no torch."""

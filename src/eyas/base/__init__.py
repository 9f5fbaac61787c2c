"""The ground floor: errors, configuration, provenance, progress, storage. It imports no torch."""

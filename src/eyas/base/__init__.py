"""The lowest package: errors, configuration, storage, provenance and progress. It does not import torch."""

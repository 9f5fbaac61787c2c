"""Puts a target with its head to work: on Vertex AI, on Kubernetes. It knows of engines only how they are started."""

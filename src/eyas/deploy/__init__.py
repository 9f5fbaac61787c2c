"""Deploys a target with its head to Vertex AI or Kubernetes. An engine is known here only by the way it is started."""

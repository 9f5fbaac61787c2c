"""Reads the head directories of every project, writes those of the engines, and checks heads against targets."""

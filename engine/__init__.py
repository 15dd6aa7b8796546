"""Carries out what the protocol decides: buffers, pools, pulls, workers and the command line."""

"""Measuring: forward passes, decoding modes, peers, the machine. Nothing here prints."""

"""Formulas of the SSD paper: speed-ups (``speedup``), hit rates (``hit_rate``), rounds (``rounds``)."""

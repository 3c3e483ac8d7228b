"""Formulas of the SSD paper: speed-ups (``speedup``), outcomes (``distributions``), pass times (``latency``)."""

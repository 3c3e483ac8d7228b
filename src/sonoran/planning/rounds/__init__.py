"""Decoding rounds simulated event by event (``events``), the same in closed form (``formulas``), and presets."""

"""Event simulation of decoding rounds (``events``), the same in closed form (``closed_form``), and presets."""

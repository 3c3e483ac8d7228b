"""Sampling: parameters, what they do to logits, noise, verification rules, stop rules. Pure; knows no backend."""

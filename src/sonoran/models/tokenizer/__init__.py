"""Text to token ids and back; chat templates; whether two models share a vocabulary."""

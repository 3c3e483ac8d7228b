"""Sonoran: fast, lossless text generation with speculative speculative decoding."""

__version__ = "0.1.0"

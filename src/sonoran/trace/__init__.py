"""Timelines of a run: spans of target and draft worker, and the Chrome trace made of them."""

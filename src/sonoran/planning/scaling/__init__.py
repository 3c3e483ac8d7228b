"""The planner: scaling laws of speculative decoding (SDSL), reproduced and usable. Pure; knows no backend."""

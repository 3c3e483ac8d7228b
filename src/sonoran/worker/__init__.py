"""The draft as a process of its own: its life, its wire, and the engine's end of it."""

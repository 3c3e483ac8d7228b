"""What proposes speculations to the engine: one protocol, one file per drafter."""

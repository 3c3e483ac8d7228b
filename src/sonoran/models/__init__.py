"""Models on disk: finding, fetching and reading them, and their tokenizers."""

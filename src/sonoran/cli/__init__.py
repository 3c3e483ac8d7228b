"""The command line: one module per command; nothing else prints."""

"""The HTTP server: OpenAI's interface over one engine, metrics, and a page."""

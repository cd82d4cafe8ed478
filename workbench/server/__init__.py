"""HTTP server without pages: health, metrics and an OpenAI-compatible API. Its middleware also serves the app."""

"""HTTP server without pages: health, metrics and an OpenAI-compatible API. The app uses its middleware, too."""

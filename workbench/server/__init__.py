"""The backend over HTTP without pages: health, metrics, and an OpenAI-compatible API."""

"""Synthetic scenes of coloured shapes, their images, and questions about them, for the bundled vision models."""

"""Generate synthetic scenes of coloured shapes, images of them, and questions, for the bundled vision models."""

"""Generate synthetic images of coloured shapes (scenes) with questions, for the bundled vision models."""

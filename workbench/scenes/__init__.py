"""The small world that the bundled vision models know: scenes of coloured shapes, drawn, and asked about."""

"""Decoding of masked-diffusion language models: positions of a canvas are filled in any order."""

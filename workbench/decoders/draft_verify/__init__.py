"""Draft-and-verify decoding: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; trees as in SpecInfer, §4.

`decoder.py` runs the phases of a round for all sequences. `round_state.py` and `acceptance.py` implement them for one
sequence. `parts.py` has the base classes of drafters, tree builders, verifiers and policies.
"""

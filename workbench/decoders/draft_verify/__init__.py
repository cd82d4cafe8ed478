"""Draft-and-verify decoding: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; trees as in SpecInfer, §4.

`decoder.py` has the phases of a round for all sequences, `round_state.py` and `acceptance.py` their bodies for one,
`parts.py` the base classes of drafters, tree builders, verifiers and policies.
"""

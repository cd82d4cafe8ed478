"""Draft-and-verify decoding: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; trees as in SpecInfer, §4.

`decoder.py` runs the phases of a round for all sequences. `round_state.py` implements them for one sequence, with
`verification_input.py` (input of the target's forward pass), `acceptance.py` (acceptance rule and accepted path) and
`tree_record.py` (record for the trace). `parts.py` has the base classes of drafters, tree builders, verifiers and
policies.
"""

"""Heads that others trained: the layouts of their checkpoints, read into a neutral description.

`stored` opens safetensors and refuses pickles; each of the other modules knows the layouts of one family by names of
configuration fields and tensors, which are facts; `reading.read` asks them all. A `description.Checkpoint` says what
was found, `fits` whether that suits a target. What of it drafts here is up to the net of its kind
(`workbench.methods.drafters.trained.TrainedNet.adopted`).
"""

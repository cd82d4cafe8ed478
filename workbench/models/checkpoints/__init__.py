"""Read checkpoints of trained heads (EAGLE, Medusa, Hydra) from other projects into a common description.

The module `files` opens safetensors and refuses pickles. `eagle`, `eagle3`, `medusa` and `hydra` each recognise the
layouts of one family by the names of configuration fields and tensors; `layouts.read_checkpoint` tries them in turn.
The result is a `description.Checkpoint`; `compatibility` checks whether it fits a target. The network class of the
family decides whether it supports a checkpoint (`workbench.methods.common.trained_net.TrainedNet.from_checkpoint`).
"""

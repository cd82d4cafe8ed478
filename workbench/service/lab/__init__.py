"""The lab: heads that are trained on this machine in a process of their own, watched while they learn, and promoted.

A run is a folder: what was asked for (`run.json`), the log and the figures of `workbench train`, its checkpoint, its
head, and its curves as TensorBoard event files. The training is reached through its command line and these files alone.
"""

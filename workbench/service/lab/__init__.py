"""The Lab tab: train heads in a separate process on this machine, show their curves, and draft with them.

A run is a folder with the request (`run.json`), the log and the results of `workbench train`, the checkpoint, the head,
and the curves as TensorBoard event files. The lab controls the training only through the command line `workbench train`
and reads only these files.
"""

"""Train heads in a separate process on this machine, watch the curves, and promote a head to the app (lab).

A run is a folder with the request (`run.json`), the log and the results of `workbench train`, the checkpoint, the head,
and the curves as TensorBoard event files. The lab uses the training only through its command line and these files.
"""

"""Rounds whose state stays on the device, so that the host can queue a round before it has read the one before."""

"""Overlapped schedules: the drafter works on the next round while the target verifies this one."""

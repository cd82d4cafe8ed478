"""Overlapped drafting: the drafter drafts the next round while the target verifies the current one."""

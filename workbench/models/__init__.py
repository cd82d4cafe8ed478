"""Find, download, convert, load and check models and trained heads (Medusa, EAGLE), and run their forward passes."""

"""The methods that come with the workbench: one file each, with everything of it, as its `METHOD`."""

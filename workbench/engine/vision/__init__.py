"""Pictures: from prompt and processor through the target and the drafters to what is shown of them."""

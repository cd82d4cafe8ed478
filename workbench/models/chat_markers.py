"""What the bundled models write between what is said: who speaks, where a text ends, where a picture stands."""

USER, ASSISTANT, END, IMAGE = "<|user|>", "<|assistant|>", "<|endoftext|>", "<|image|>"

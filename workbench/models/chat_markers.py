"""Text markers of the bundled models: user turn, assistant turn, end of text, image placeholder."""

USER, ASSISTANT, END, IMAGE = "<|user|>", "<|assistant|>", "<|endoftext|>", "<|image|>"

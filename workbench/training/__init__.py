"""Training of the bundled models: text generators, corpus, tokenizer, training recipes and evaluation."""

"""Making the bundled models: text generators, corpus, tokenizer, training recipes and evaluation."""

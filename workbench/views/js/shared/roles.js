/** Messages of a chat: who speaks is shown as a role, not as the marker that says so to the model. No DOM.
 *
 *  A prompt is one text, as the tokenizer reads it: runs, links and kept runs hold it with its markers. Here that text
 *  is taken apart for a person, and put together again, so that nothing of it is lost on the way. */

const OPEN = "<|user|>", CLOSE = "<|assistant|>";
const MARKER = /^<\|(system|user|assistant)\|>$/;
const NAME = /^(system|user|assistant|model|tool)$/;
/** Formats that write a role's name between markers: opening token, then the name, then what closes it. */
const NAMED = {
  "<|im_start|>": ["\n"],
  "<start_of_turn>": ["\n"],
  "<|start_header_id|>": ["<|end_header_id|>", "\n\n"],
};

/** A prompt as a person writes it: the words, and whether they are a message to be answered. Pure.
 *  @param {string} prompt  @returns {{words: string, chat: boolean}} */
export function split(prompt) {
  const chat = prompt.startsWith(OPEN) && prompt.endsWith(CLOSE) && prompt.length >= OPEN.length + CLOSE.length;
  return { words: chat ? prompt.slice(OPEN.length, -CLOSE.length) : prompt, chat };
}

/** The prompt of words: the inverse of `split`. Pure. */
export function join(words, chat) {
  return chat ? OPEN + words + CLOSE : words;
}

/** The prompt of what somebody typed: no words are no message. Pure. */
export function typed(words, chat) {
  return words.trim() ? join(words, chat) : words;
}

/** A token's text, or the role that it stands for. Pure. */
export function word(text) {
  return MARKER.exec(text)?.[1] ?? text;
}

/** The tokens of a prompt as roles and what each says. A marker counts where it is a token of its own: what somebody
 *  only typed is text. Pure. @param {string[]} tokens  texts of tokens  @returns {{role: string|null, text:
 *  string}[]} */
export function turns(tokens) {
  const found = [{ role: null, text: "" }];
  for (let i = 0; i < tokens.length; i += 1) {
    const closing = NAMED[tokens[i]],
      named = closing && NAME.test(tokens[i + 1] ?? "") && closing.every((text, k) => tokens[i + 2 + k] === text);
    if (named) found.push({ role: tokens[i + 1], text: "" });
    else if (MARKER.test(tokens[i])) found.push({ role: word(tokens[i]), text: "" });
    else found.at(-1).text += tokens[i];
    if (named) i += 1 + closing.length;
  }
  return found.filter((turn) => turn.role !== null || turn.text !== "");
}
